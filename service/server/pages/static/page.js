// What every page shares: the palette's switch, filters that apply themselves, a key for the search, the tree.
"use strict";
(() => {
  const base = document.querySelector('meta[name="root"]').content;  // what a proxy has before every path
  const root = document.documentElement;
  const button = document.querySelector("[data-theme-switch]");
  const name = button.querySelector("[data-theme-name]");
  const order = ["auto", "light", "dark"];
  name.textContent = root.dataset.theme || "auto";
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(name.textContent) + 1) % order.length];
    name.textContent = next;
    if (next === "auto") { localStorage.removeItem("theme"); delete root.dataset.theme; }
    else { localStorage.setItem("theme", next); root.dataset.theme = next; }
  });

  for (const form of document.querySelectorAll("[data-auto-submit]"))
    for (const select of form.querySelectorAll("select")) select.addEventListener("change", () => form.requestSubmit());

  const search = document.querySelector("[data-hotkey]");
  if (search) document.addEventListener("keydown", (event) => {
    if (event.key !== search.dataset.hotkey || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    search.focus();
  });

  // Parts that take a while are loaded by themselves: [data-load] at once, [data-branch] when it is opened.
  const fill = async (place, address) => {
    try {
      const answer = await fetch(address);
      if (answer.redirected) { location.assign(base + "/login"); return false; }  // the session has ended
      place.innerHTML = await answer.text();
      return answer.ok;
    } catch {
      place.textContent = "The server cannot be reached. Load the page again.";
      return false;
    }
  };
  const load = (inside) => {
    for (const place of inside.querySelectorAll("[data-load]")) {
      const address = place.dataset.load;
      delete place.dataset.load;
      fill(place, address).then(() => load(place));
    }
  };
  // All rows of a table at once.
  const offer = (inside) => { for (const each of inside.querySelectorAll("[data-all]")) each.hidden = false; };
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-all]")) return;
    const boxes = event.target.closest("table").querySelectorAll('input[name="job"]');
    for (const each of boxes) each.checked = event.target.checked;
  });
  offer(document);
  window.ggferry = { load: (inside) => { offer(inside); load(inside); } };
  load(document);
  document.addEventListener("toggle", async (event) => {
    const branch = event.target;
    if (!branch.open || !branch.dataset || !branch.dataset.branch) return;
    const address = branch.dataset.branch;
    delete branch.dataset.branch;
    branch.querySelector(":scope > div > p").classList.add("busy");
    if (!await fill(branch.querySelector(":scope > div"), address)) branch.dataset.branch = address;
  }, true);

  // What the chosen format does not take is hidden, and not sent.
  const fit = (form) => {
    const format = form.querySelector("[data-format]").value;
    for (const each of form.querySelectorAll("[data-for]")) {
      const fits = each.dataset.for.split(" ").includes(format);
      each.hidden = !fits;
      for (const field of each.matches("option") ? [each] : each.querySelectorAll("input, select, textarea")) field.disabled = !fits;
    }
    for (const select of form.querySelectorAll("select")) {
      const [chosen] = select.selectedOptions;
      if (chosen && chosen.disabled) select.value = [...select.options].find((each) => !each.disabled).value;
    }
    for (const group of form.querySelectorAll("fieldset")) group.hidden = !group.querySelector(".option:not([hidden])");
  };
  for (const select of document.querySelectorAll("[data-format]")) fit(select.form);
  document.addEventListener("change", (event) => { if (event.target.matches("[data-format]")) fit(event.target.form); });

  // A text that an option states is read here, and sent with the form.
  document.addEventListener("change", async (event) => {
    const into = event.target.dataset.loadInto, [file] = into ? event.target.files : [];
    if (!file) return;
    const note = event.target.closest("label").nextElementSibling, most = 200000;
    let text = "", fault = "";
    try {
      if (file.size <= 4 * most) text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (file.size > 4 * most || text.length > most) fault = "longer than " + most + " characters";
    } catch { fault = "not UTF-8 text"; }
    note.textContent = fault && file.name + " is " + fault + ".";
    note.hidden = !fault;
    if (!fault) {
      const field = document.getElementById(into);
      field.value = text;
      field.rows = Math.min(12, Math.max(2, text.split("\n").length));
      field.focus();
    }
    event.target.value = "";
  });

  const later = document.querySelector("[data-reload]");
  if (later) setTimeout(() => location.reload(), 1000 * Number(later.dataset.reload));
})();
