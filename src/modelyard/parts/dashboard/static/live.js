// Pages work without this script. It keeps live pages up to date, loads what takes long to make, shows times in the
// reader's time zone, asks before an action that cannot be undone, presses buttons by their keys, and streams the answer
// of a model that is tried.
"use strict";

const dress = (node) => {
  for (const time of node.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    time.title = at.toLocaleString();
    const seconds = (Date.now() - at) / 1000;
    const format = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
    for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]]) {
      if (Math.abs(seconds) >= size || unit === "second") {
        time.textContent = format.format(-Math.trunc(seconds / size), unit);
        break;
      }
    }
  }
};

// Replace what has changed, part by part, so that an open fold, a selection or the focus elsewhere stays.
const replace = (now, then) => {
  const open = new Set([...now.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
  for (const summary of then.querySelectorAll("details > summary")) {
    if (open.has(summary.textContent)) summary.parentElement.open = true;
  }
  dress(then);
  const old = [...now.children], next = [...then.children];
  next.forEach((part, at) => {
    if (!old[at]) now.append(part);
    else if (!old[at].isEqualNode(part) && !old[at].contains(document.activeElement)) old[at].replaceWith(part);
  });
  old.slice(next.length).forEach((part) => part.remove());
  now.toggleAttribute("data-live", then.hasAttribute("data-live"));
};

const update = (text) => {
  const then = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  if (then) replace(document.querySelector("main"), then);
  load();
};

// Load what takes long to make, and show it in place.
const load = async () => {
  const line = document.querySelector("main p[data-load]");
  if (!line) return;
  const link = line.querySelector("a");
  line.textContent = line.dataset.load;
  line.removeAttribute("data-load");
  const answer = await fetch(link.href).catch(() => null);
  if (answer && answer.ok && !answer.redirected) update(await answer.text());
  else line.replaceChildren("This failed. ", link);
};

const poll = async () => {
  while (document.querySelector("main").hasAttribute("data-live")) {
    await new Promise((done) => setTimeout(done, 5000));
    const answer = await fetch(location.href).catch(() => null);
    if (answer && answer.ok) update(await answer.text());
  }
};

const follow = () => {
  const address = new URL(location.href);
  address.searchParams.set("live", "1");
  const source = new EventSource(address);
  source.onmessage = (event) => update(JSON.parse(event.data));
  source.addEventListener("end", () => source.close());
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) poll();
  };
};

const tryModel = (form) =>
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = document.querySelector("#answer"), button = form.querySelector("button");
    shown.textContent = "";
    button.disabled = true;
    try {
      const body = new URLSearchParams(new FormData(form));
      const answer = await fetch(form.action, { method: "POST", body, headers: { accept: "text/plain" } });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) shown.append(part.value);
    } finally {
      button.disabled = false;
    }
  });

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// A button with a key is pressed by it, unless somebody types.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,textarea,select")) return;
  const button = document.querySelector(`button[data-key="${CSS.escape(event.key)}"]`);
  if (button) {
    event.preventDefault();
    button.click();
  }
});

dress(document);
const form = document.querySelector("form[data-try]");
if (form) tryModel(form);
load();
if (document.querySelector("main").hasAttribute("data-live")) follow();
