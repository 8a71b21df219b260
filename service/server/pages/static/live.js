// Progress as it comes: the server's event stream moves the meters; a change of state loads the part of the page again.
"use strict";
(() => {
  const base = document.querySelector('meta[name="root"]').content;  // what a proxy has before every path
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const size = (bytes) => {
    let unit = 0;
    while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit++; }
    return bytes.toFixed(unit ? 1 : 0) + " " + units[unit];
  };
  const duration = (seconds) => {
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 60) return whole + " s";
    if (whole < 3600) return Math.floor(whole / 60) + " min " + whole % 60 + " s";
    return Math.floor(whole / 3600) + " h " + Math.floor(whole % 3600 / 60) + " min";
  };

  const show = (meter, found) => {
    const bar = meter.querySelector("progress");
    if (found.total) { bar.max = found.total; bar.value = Math.min(found.done, found.total); }
    const put = (name, text) => { meter.querySelector("[data-" + name + "]").textContent = text; };
    if (found.phase) put("phase", found.phase);
    if (found.total) put("bytes", size(found.done) + " of " + size(found.total));
    put("rate", found.rate > 0 ? size(found.rate) + "/s" : "");
    put("eta", found.eta === null || found.eta === undefined ? "" : duration(found.eta) + " left");
  };
  const move = (key, found) => {
    for (const meter of document.querySelectorAll("[data-progress]"))
      if (meter.dataset.progress === key) show(meter, found);
  };

  // The control of that name, or where it can do no more, another one beside it.
  const focused = (id) => {
    const found = document.getElementById(id);
    (found && found.disabled ? found.parentElement.querySelector("button:not(:disabled)") : found)?.focus();
  };

  // One load at a time, a second apart; what changes meanwhile asks for one more. The focus stays where it was.
  const loading = new Map();
  const load = async (place, address) => {
    if (loading.has(place)) { loading.set(place, address); return; }
    loading.set(place, null);
    try {
      const answer = await fetch(address);
      if (answer.redirected) location.assign(base + "/login");  // the session has ended
      else if (answer.ok) {
        const text = await answer.text(), held = place.contains(document.activeElement) && document.activeElement;
        const picked = new Set([...place.querySelectorAll('input[name="job"]:checked')].map((each) => each.value));
        place.innerHTML = text;
        for (const each of place.querySelectorAll('input[name="job"]')) each.checked = picked.has(each.value);
        window.ggferry.load(place);
        if (held && held.id) focused(held.id);
        else if (held && held.href) [...place.querySelectorAll("a")].find((each) => each.href === held.href)?.focus();
      }
    } catch { /* the next event tries again */ }
    setTimeout(() => {
      const again = loading.get(place);
      loading.delete(place);
      if (again && place.isConnected) load(place, again);
    }, 1000);
  };
  const ended = ["done", "failed", "quarantined", "skipped", "cancelled", "expired"];
  const changed = (id, state) => {
    const outcome = document.querySelector("[data-outcome]");
    if (outcome && outcome.dataset.job === id) {
      if (ended.includes(state)) load(document.querySelector("[data-whole]"), outcome.dataset.outcome + "?part=whole");
      else load(outcome, outcome.dataset.outcome + "?part=outcome");
    }
    const list = document.querySelector("[data-refresh]"), active = document.querySelector("[data-active]");
    if (list) load(list, list.dataset.refresh);
    if (active) load(active, base + "/activity?part=active");
  };

  // A job moved in the queue: the table is loaded again, and what pressed the button stays where it was.
  document.addEventListener("submit", async (event) => {
    const form = event.target, button = event.submitter;
    if (!form.matches("[data-queue]") || !button) return;
    event.preventDefault();
    const [to, job] = button.value.split(" "), said = document.querySelector("[data-moved]");
    const name = button.closest("tr").querySelector("th a").textContent;
    try {
      const answer = await fetch(base + "/api/v1/jobs/" + job + "/move", {
        method: "POST", body: JSON.stringify({ to }),
        headers: { "Content-Type": "application/json", "X-CSRF-Token": form.elements.csrf.value },
      });
      const found = await answer.json();
      said.textContent = answer.ok ? name + " is number " + found.position + " of " + found.queued + "." : found.detail;
      said.className = answer.ok ? "sr" : "note";
    } catch { said.textContent = "The server cannot be reached."; said.className = "note"; }
    const list = document.querySelector("[data-refresh]");
    load(list, list.dataset.refresh);
  });

  const offline = document.createElement("p");
  offline.className = "offline";
  offline.setAttribute("role", "status");
  offline.textContent = "Connection lost; trying again …";
  offline.hidden = true;
  document.body.append(offline);

  // What changed before the stream was open is asked for once; after a lost connection the server tells what was missed.
  // A page that nobody sees lets go of its connection: browsers have only six for a server.
  let source = null, last = null, leaving = false;
  const refresh = async () => {
    const outcome = document.querySelector("[data-outcome]"), list = document.querySelector("[data-refresh]");
    if (!outcome) { if (list && document.querySelector("[data-progress]")) load(list, list.dataset.refresh); return; }
    const answer = await fetch(outcome.dataset.outcome + "?part=state").catch(() => null);
    const state = answer && answer.ok ? await answer.text() : null;
    if (state && state !== outcome.querySelector(".badge").dataset.state) changed(outcome.dataset.job, state);
  };
  const connect = () => {
    source = new EventSource(base + "/api/v1/events" + (last === null ? "" : "?since=" + last));
    source.addEventListener("open", () => { offline.hidden = true; if (last === null) refresh(); });
    source.addEventListener("error", async () => {
      if (leaving) return;
      offline.hidden = false;
      if (source.readyState !== EventSource.CLOSED) return;  // the browser tries again by itself
      const answer = await fetch(base + "/api/v1/roots").catch(() => null);
      if (answer && answer.status === 401) offline.textContent = "Signed out. Load the page again to sign in.";
      else setTimeout(() => { if (!leaving && !document.hidden) connect(); }, 3000);
    });
    source.addEventListener("progress", (event) => {
      const run = { phase: "", done: 0, total: 0, rate: 0, eta: null };
      for (const [id, found] of Object.entries(JSON.parse(event.data))) {
        move(id, found);
        run.done += found.done; run.total += found.total; run.rate += found.rate;
      }
      const meter = document.querySelector('[data-progress="run"]');
      if (!meter) return;
      run.total += Number(meter.dataset.waiting);
      if (run.rate > 0) run.eta = (run.total - run.done) / run.rate;
      show(meter, run);
    });
    source.addEventListener("job", (event) => {
      const found = JSON.parse(event.data);
      last = event.lastEventId;
      changed(found.job, found.state);
    });
  };
  window.addEventListener("pagehide", () => { leaving = true; source.close(); });
  window.addEventListener("pageshow", (event) => { if (event.persisted) { leaving = false; connect(); refresh(); } });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source.close();
    else if (source.readyState === EventSource.CLOSED) { connect(); refresh(); }
  });
  connect();
})();
