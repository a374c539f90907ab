// Tokens rendered by the server, with the switch for ids and the legend.

import { drawn, make, say } from "./dom.js";

const KEY = "tokenloom.ids";

/** Returns whether to show ids below texts; the choice is stored. */
function wantsIds() {
  return localStorage.getItem(KEY) === "yes";
}

/** Returns the element for `html` and `legend_html` of an answer. */
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

/** Marks `length` tokens from index `start` on, and scrolls to them. */
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
