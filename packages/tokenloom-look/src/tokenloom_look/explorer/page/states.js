// Placeholders for content that is loading, empty or failed.

import { make } from "./dom.js";

/** Content is loading. */
export function waiting(text = "Loading …") {
  return make("p", { class: "state waiting" }, text);
}

/** There is no content, without an error. */
export function nothing(title, ...hints) {
  return make("div", { class: "state nothing" }, make("p", { class: "state-title" }, title), hints.map(hinted));
}

/** Loading failed; the button calls `retry`. */
export function failed(error, retry) {
  return make(
    "div",
    { class: "state failed", role: "alert" },
    make("p", { class: "state-title" }, make("bdi", {}, error.message)),
    error.hint ? hinted(error.hint) : null,
    retry && make("button", { type: "button", onclick: retry }, "Try again"),
  );
}

/** A paragraph; text between backticks is code. */
export function hinted(text) {
  const parts = text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));
  return make("p", { class: "hint" }, parts);
}
