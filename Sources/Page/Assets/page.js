// Brings the page's parts up to date as the server sends them. Nothing is drawn here: the parts come as
// HTML, written and escaped by the server, and only what differs is touched, so that focus, selection and
// open details stay.
"use strict";

(() => {
  const main = document.querySelector("main[data-live]");
  if (!main) return;
  const connection = document.getElementById("connection");
  const pause = document.getElementById("pause");
  const announcement = document.getElementById("announcement");
  let source = null;
  let isPaused = false;
  let retry = 0;

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key : undefined);

  function copyAttributes(from, to) {
    for (const { name } of [...to.attributes]) {
      if (!from.hasAttribute(name)) to.removeAttribute(name);
    }
    for (const { name, value } of from.attributes) {
      if (to.getAttribute(name) !== value) to.setAttribute(name, value);
    }
  }

  // Makes the children of `old` equal to those of `fresh`; children with a key stay with their key.
  function update(old, fresh) {
    const keyed = new Map();
    for (const child of old.children) {
      if (keyOf(child) !== undefined) keyed.set(keyOf(child), child);
    }
    let place = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const key = keyOf(wanted);
      let found = place;
      if (key !== undefined) {
        found = keyed.get(key) ?? null;
        keyed.delete(key);
        if (found && found !== place) old.insertBefore(found, place);
      } else if (found && keyOf(found) !== undefined) {
        found = null;
      }
      if (!found || found.nodeName !== wanted.nodeName) {
        old.insertBefore(wanted, place);
        continue;
      }
      if (found === place) place = place.nextSibling;
      if (found.nodeType === Node.ELEMENT_NODE) {
        copyAttributes(wanted, found);
        update(found, wanted);
      } else if (found.data !== wanted.data) {
        found.data = wanted.data;
      }
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  function take(part) {
    const old = document.getElementById(part.id);
    if (!old) return;
    const focused = document.activeElement;
    const template = document.createElement("template");
    template.innerHTML = part.html;
    update(old, template.content);
    // Moving an element takes its focus away.
    if (focused && focused !== document.activeElement && old.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
    if (part.id === "summary") announce();
  }

  // Says the fleet's sentence to screen readers: when it has changed, and not all the time.
  let nextAnnouncement = Date.now() + 30_000;
  function announce() {
    const lead = main.querySelector(".lead");
    if (!lead || !announcement || Date.now() < nextAnnouncement) return;
    if (announcement.textContent === lead.textContent) return;
    announcement.textContent = lead.textContent;
    nextAnnouncement = Date.now() + 30_000;
  }

  function show(state, text) {
    if (!connection) return;
    connection.hidden = false;
    connection.dataset.state = state;
    connection.textContent = text;
  }

  function close() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }

  function open() {
    close();
    if (isPaused || document.hidden) return;
    source = new EventSource(main.dataset.live);
    source.addEventListener("open", () => show("live", "Live"));
    source.addEventListener("part", (event) => take(JSON.parse(event.data)));
    source.addEventListener("over", () => location.reload());
    source.addEventListener("error", () => {
      show("away", "Not connected");
      // A browser tries again by itself, unless it was refused.
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        retry = setTimeout(open, 10_000);
        // Perhaps because nobody is signed in any more: then the page asks for that.
        fetch(location.pathname, { method: "HEAD", cache: "no-store" }).then(
          (answer) => { if (answer.status === 401) location.reload(); }, () => {});
      }
    });
  }

  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      pause.textContent = isPaused ? "Go on" : "Pause";
      if (isPaused) {
        close();
        show("paused", "Paused");
      } else {
        open();
      }
    });
  }

  // A browser has few connections to one host: pages that nobody sees keep none.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
})();
