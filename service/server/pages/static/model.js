// The tokenizer's try-out box.
"use strict";
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("[data-tokenizer]")) return;
  event.preventDefault();
  const base = document.querySelector('meta[name="root"]').content;  // what a proxy has before every path
  const shown = form.parentElement.querySelector("[data-tokens]"), count = form.querySelector("[data-count]");
  count.textContent = "…";
  try {
    const answer = await fetch(form.action + "?part=tokens&" + new URLSearchParams(new FormData(form)));
    if (answer.redirected) { location.assign(base + "/login"); return; }
    shown.innerHTML = await answer.text();
    const number = shown.querySelectorAll(".tokens li").length;
    count.textContent = answer.ok ? (number === 1 ? "1 token" : number + " tokens") : "";
  } catch {
    count.textContent = "The server cannot be reached.";
  }
});
