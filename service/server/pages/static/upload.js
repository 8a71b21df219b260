// Files that are dropped or chosen are sent in pieces. What the server acknowledged it keeps: when the connection breaks,
// or the same files are dropped again another day, sending goes on where it stopped (docs/service.md, Uploads).
"use strict";
(() => {
  const base = document.querySelector('meta[name="root"]').content;  // what a proxy has before every path
  const PIECE = 8 * 1024 * 1024, PATIENCE = [1, 2, 5, 10, 20, 30, 30, 30];
  const zone = document.querySelector("[data-drop]");
  const list = document.querySelector("[data-uploads]"), panel = document.querySelector("[data-uploads-panel]");
  if (!list) return;
  const csrf = document.querySelector('meta[name="csrf"]').content;
  const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const size = (bytes) => {
    let unit = 0;
    while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit++; }
    return bytes.toFixed(unit ? 1 : 0) + " " + units[unit];
  };

  class Refused extends Error {
    constructor(problem) { super(problem.detail || problem.title); this.problem = problem; }
  }
  // Answers are JSON; what the server refuses is final, anything else is tried again.
  const ask = async (address, options = {}) => {
    for (let turn = 0; ; turn++) {
      let answer;
      try {
        answer = await fetch(base + "/api/v1" + address, { ...options, headers: { "X-CSRF-Token": csrf, ...options.headers } });
      } catch (error) {
        if (turn >= PATIENCE.length) throw error;
        await wait(PATIENCE[turn]);
        if (options.body instanceof Blob) return null;
        continue;
      }
      const found = answer.status === 204 ? {} : await answer.json();
      if (answer.ok || (answer.status === 409 && "offset" in found)) return found;
      if (![408, 409, 429, 502, 503, 504].includes(answer.status) || turn >= PATIENCE.length) throw new Refused(found);
      await wait(Number(answer.headers.get("Retry-After")) || PATIENCE[turn]);
      if (options.body instanceof Blob) return null;
    }
  };
  const json = (body) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

  // --- what is seen of an upload ---

  const element = (name, text = "", kind = "") => {
    const made = document.createElement(name);
    made.textContent = text;
    made.className = kind;
    return made;
  };
  const shown = (name, total) => {
    const item = element("li"), line = element("p", "", "meter"), bar = element("progress"), note = element("p", "", "small muted");
    const told = element("span");
    note.setAttribute("role", "status");
    bar.max = Math.max(1, total);
    bar.value = 0;
    bar.setAttribute("aria-label", "Upload of " + name);
    line.append(element("b", name), told);
    item.append(line, bar, note);
    panel.hidden = false;
    list.prepend(item);
    let began = 0, from = 0;
    return {
      item,
      at(done) {
        if (!began) { began = performance.now(); from = done; }
        const seconds = (performance.now() - began) / 1000, rate = seconds > 0.2 ? (done - from) / seconds : 0;
        bar.value = done;
        told.textContent = size(done) + " of " + size(total) + (rate > 0 && done < total
          ? ", " + size(rate) + "/s, " + Math.ceil((total - done) / rate) + " s left" : "");
      },
      say(text) { note.textContent = text; },
      fail(error) {
        bar.remove();
        note.remove();
        const problem = error.problem || {}, box = element("section", "", "problem");
        box.setAttribute("role", "alert");
        box.append(element("h3", problem.message || error.message));
        const rows = element("dl");
        for (const [key, words] of [["path", "Where"], ["found", "Found"], ["expected", "Expected"], ["code", "Code"]])
          if (problem[key] !== null && problem[key] !== undefined) rows.append(element("dt", words), element("dd", String(problem[key])));
        if (rows.children.length) box.append(rows);
        box.append(element("p", "What to do: " + (problem.hint || (problem.fault === "file"
          ? "check that these are a model's weights, unpacked and whole, then drop them again" : "drop the files again")), "todo"));
        item.append(box);
      },
    };
  };

  // --- sending ---

  const bytes = async (file, from, to) => new Uint8Array(await file.slice(from, to).arrayBuffer());
  const digested = async (file, end) => {
    const digest = new Sha256();
    for (let at = 0; at < end; at += PIECE) digest.update(await bytes(file, at, Math.min(end, at + PIECE)));
    return digest;
  };
  // Fine-tunes of one model have one name and one size: what was received of it tells whether it is this file.
  const resumed = async (files, view) => {
    for (const upload of await ask("/uploads")) {
      if (upload.state !== "receiving" || upload.files.length !== files.length || !upload.files.every((each, number) =>
        each.name === files[number].name && each.bytes === files[number].file.size)) continue;
      view.say("Comparing with what was sent before …");
      const digests = [];
      for (const [number, each] of upload.files.entries()) {
        digests.push(await digested(files[number].file, each.offset));
        if (digests[number].hex() !== each.sha256) break;
        if (number === files.length - 1) return { upload, digests };
      }
    }
    view.say("");
    return null;
  };
  const send = async (files, purpose = "model") => {
    const total = files.reduce((sum, each) => sum + each.file.size, 0);
    const name = files.length === 1 ? files[0].name : files[0].name + " and " + (files.length - 1) + " more";
    const view = shown(name, total);
    view.at(0);
    try {
      const known = purpose === "model" && await resumed(files, view);
      const announced = files.map((each) => ({ name: each.name, bytes: each.file.size }));
      let upload = known ? known.upload : await ask("/uploads", json({ files: announced, purpose }));
      const digests = known ? known.digests : files.map(() => new Sha256());
      if (known) {
        const old = list.querySelector('[data-upload="' + upload.id + '"]');
        if (old) old.remove();
        view.say("Going on where it stopped.");
      }
      const sum = () => upload.files.reduce((bytes, each) => bytes + each.offset, 0);
      for (let number = 0; number < files.length; number++) {
        const mine = upload.files[number], file = files[number].file;
        while (mine.offset < file.size) {
          const end = Math.min(file.size, mine.offset + PIECE);
          view.at(sum());
          const after = digests[number].copy().update(await bytes(file, mine.offset, end));
          const answer = await ask("/uploads/" + upload.id + "/files/" + number, {
            method: "PUT", body: file.slice(mine.offset, end),
            headers: { "Content-Type": "application/octet-stream",
              "Content-Range": "bytes " + mine.offset + "-" + (end - 1) + "/" + file.size,
              "Upload-Digest": "sha-256=:" + after.base64() + ":" },
          });
          const now = answer || (await ask("/uploads/" + upload.id)).files[number];
          digests[number] = now.offset === end ? after : await digested(file, now.offset);
          mine.offset = now.offset;
        }
      }
      view.at(total);
      view.say("Received. Looking into it …");
      while (["receiving", "inspecting"].includes(upload.state)) {
        upload = await ask("/uploads/" + upload.id);
        if (upload.state === "inspecting" && upload.error) view.say(upload.error.message);
        if (upload.state === "inspecting") await wait(upload.error ? 5 : 0.4);
        else if (upload.state === "receiving") await wait(1);
      }
      if (upload.state !== "accepted") throw new Refused(upload.error || {});
      view.say(purpose === "model" ? "Accepted. Making the plan …" : "Accepted.");
      return upload.id;
    } catch (error) {
      view.fail(error);
      return null;
    }
  };
  const plan = (id) => {
    const form = document.querySelector("[data-plan-form]");
    form.querySelector('[name="path"]').value = "upload:" + id;
    form.submit();
  };
  let busy = false;
  const take = async (files) => {
    if (!files.length || busy) return;
    busy = true;
    const id = await send(files.sort((one, other) => one.name < other.name ? -1 : 1));
    busy = false;
    if (id) plan(id);
  };

  // --- dropping: files, and folders with what is in them ---

  const inside = async (entry, above) => {
    if (entry.isFile) {
      return [{ name: above + entry.name, file: await new Promise((done, fail) => entry.file(done, fail)) }];
    }
    const reader = entry.createReader(), found = [];
    for (;;) {
      const some = await new Promise((done, fail) => reader.readEntries(done, fail));
      if (!some.length) return found;
      for (const each of some) found.push(...await inside(each, above + entry.name + "/"));
    }
  };
  const dropped = async (data) => {
    const entries = [...data.items].map((item) => item.webkitGetAsEntry && item.webkitGetAsEntry()).filter(Boolean);
    if (!entries.some((entry) => entry.isDirectory)) return [...data.files].map((file) => ({ name: file.name, file }));
    const found = (await Promise.all(entries.map((entry) => inside(entry, "")))).flat();
    return found.filter((each) => !/(^|\/)\./.test(each.name));
  };
  if (zone) {
    let depth = 0;
    zone.addEventListener("dragenter", (event) => { event.preventDefault(); depth++; zone.classList.add("over"); });
    zone.addEventListener("dragleave", () => { if (--depth <= 0) { depth = 0; zone.classList.remove("over"); } });
    zone.addEventListener("dragover", (event) => event.preventDefault());
    zone.addEventListener("drop", async (event) => {
      event.preventDefault();
      depth = 0;
      zone.classList.remove("over");
      take(await dropped(event.dataTransfer));
    });
    zone.querySelector("[data-files]").addEventListener("change", (event) => {
      take([...event.target.files].map((file) => ({ name: file.name, file })));
      event.target.value = "";
    });
  }
  // A field of lines names it on a line of its own.
  const name = (field, source) => {
    const before = field.tagName === "TEXTAREA" ? field.value.trimEnd() : "";
    field.value = before ? before + "\n" + source : source;
  };
  // A file that an option names goes to the server, and its field then names it.
  document.addEventListener("change", async (event) => {
    const into = event.target.dataset.uploadInto;
    if (!into || !event.target.files.length || busy) return;
    busy = true;
    const files = [...event.target.files].map((file) => ({ name: file.name, file }));
    const id = await send(files, "option");
    busy = false;
    if (id) name(document.getElementById(into), "upload:" + id);
    event.target.value = "";
  });
  list.addEventListener("click", async (event) => {
    const id = event.target.dataset.remove;
    if (!id) return;
    event.preventDefault();
    event.target.disabled = true;
    try {
      await ask("/uploads/" + id, { method: "DELETE" });
      document.querySelector('[data-upload="' + id + '"]').remove();
    } catch (error) { event.target.parentElement.append(" " + error.message); event.target.disabled = false; }
  });
  window.addEventListener("beforeunload", (event) => { if (busy) event.preventDefault(); });
})();
