// Tokens that the server drew, with what changes how they look: texts or ids, and the legend.

import { drawn, make, say } from "./dom.js";

const KEY = "tokenloom.ids";

/** Whether ids stand below texts; kept for the next time. */
function wantsIds() {
  return localStorage.getItem(KEY) === "yes";
}

/** An element of `html` and `legend_html` of an answer. */
export function tokenPanel({ html, legend_html: legend }) {
  const tokens = drawn(html, { class: "token-texts" });
  const toggle = make("input", {
    type: "checkbox",
    onchange: () => {
      localStorage.setItem(KEY, toggle.checked ? "yes" : "no");
      tell();
      say(toggle.checked ? "ids are shown" : "ids are hidden");
    },
  });
  const tell = () =>
    tokens.querySelectorAll(".shown").forEach((shown) => shown.classList.toggle("ids", toggle.checked));
  toggle.checked = wantsIds();
  tell();
  const bar = make(
    "div",
    { class: "token-bar" },
    make("label", { class: "toggle" }, toggle, "Token ids"),
    legend ? drawn(legend, { class: "legend-frame" }) : null,
  );
  return make("div", { class: "token-panel" }, bar, tokens);
}

/** Marks `length` tokens from token `start` of the whole on, and brings them into view. */
export function markTokens(panel, start, length) {
  const marked = [];
  for (const run of panel.querySelectorAll(".run[data-slot]")) {
    const first = Number(run.dataset.slot);
    [...run.querySelectorAll(":scope > .token")].forEach((token, place) => {
      if (first + place >= start && first + place < start + length) marked.push(token);
    });
  }
  marked.forEach((token) => token.classList.add("found"));
  requestAnimationFrame(() => marked[0]?.scrollIntoView({ block: "center" }));
}
