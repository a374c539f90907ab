// The entry point: loads the target and shows the view named in the address.

import { ask, server } from "./api.js";
import { DocumentsView } from "./documents.js";
import { lastPart, make, say } from "./dom.js";
import { startJump } from "./jump.js";
import { startKeys } from "./keys.js";
import { OverviewView } from "./overview.js";
import { go, parseRoute } from "./routes.js";
import { SamplesView } from "./samples.js";
import { SearchView } from "./search.js";
import { failed, waiting } from "./states.js";
import { WatchView } from "./watch.js";

const VIEWS = {
  overview: OverviewView,
  samples: SamplesView,
  documents: DocumentsView,
  search: SearchView,
  watch: WatchView,
};

const main = document.getElementById("view");
const views = new Map(); // by name; a view keeps its state while hidden
let target = null;
let current = null;

function show() {
  const found = parseRoute(location.hash);
  if (found === null || !(found.view in VIEWS)) {
    if (found !== null || !location.hash) go("overview", {}, { replace: true });
    return;
  }
  for (const link of document.querySelectorAll("[data-view]")) {
    const isShown = link.dataset.view === found.view;
    link.setAttribute("aria-current", isShown ? "page" : "false");
    if (isShown) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  if (target === null) return;
  if (!views.has(found.view)) views.set(found.view, newView(found.view));
  const view = views.get(found.view);
  const isOther = view !== current;
  if (isOther) {
    current?.hide?.();
    main.replaceChildren(view.element);
    if (current !== null) (view.heading ?? view.panes?.heading ?? main).focus({ preventScroll: true });
    current = view;
    main.scrollTop = view.scrolled ?? 0;
  }
  view.show?.(found.parameters);
  const parts = [view.named?.(found.parameters), view.title, lastPart(target.name).textContent, "tokenloom"];
  document.title = parts.filter(Boolean).join(" · ");
}

function newView(name) {
  const view = new VIEWS[name]({ target });
  if (!view.element.querySelector("h1")) {
    view.heading = make("h1", { tabindex: -1 }, view.title);
    view.element = make("div", { class: "page" }, view.heading, view.element);
  }
  return view;
}

async function start() {
  main.replaceChildren(waiting("Opening …"));
  try {
    target = await ask("target");
  } catch (error) {
    main.replaceChildren(make("h1", { class: "visually-hidden" }, "tokenloom"), failed(error, start));
    return;
  }
  document.getElementById("target").replaceChildren(lastPart(target.name, 2));
  for (const link of document.querySelectorAll("[data-view]")) {
    link.classList.toggle("off", !target.views.includes(link.dataset.view)); // the view explains what is missing
  }
  show();
}

function tellGone() {
  const gone = document.getElementById("gone");
  gone.replaceChildren(
    "The server does not answer. Is ",
    make("code", {}, "tokenloom explore"),
    " still running? This page remains readable.",
  );
}

server.addEventListener("gone", tellGone);
server.addEventListener("back", () => {
  document.getElementById("gone").replaceChildren();
  say("the server answers again");
});
main.addEventListener("scroll", () => {
  if (current) current.scrolled = main.scrollTop;
});
addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
startJump();
startKeys({ step: (by) => current?.step?.(by) });
show();
start();
