// Before the first paint: the palette that was chosen, else the system's.
"use strict";
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
