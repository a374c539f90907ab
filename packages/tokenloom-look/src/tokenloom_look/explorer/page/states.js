// What stands where something is not there: not yet, not at all, or because of an error.

import { make } from "./dom.js";

/** Something is on its way. */
export function waiting(text = "Loading …") {
  return make("p", { class: "state waiting" }, text);
}

/** There is nothing, and that is no error. */
export function nothing(title, ...hints) {
  return make("div", { class: "state nothing" }, make("p", { class: "state-title" }, title), hints.map(hinted));
}

/** Something went wrong; `retry` tries again. */
export function failed(error, retry) {
  return make(
    "div",
    { class: "state failed", role: "alert" },
    make("p", { class: "state-title" }, make("bdi", {}, error.message)),
    error.hint ? hinted(error.hint) : null,
    retry && make("button", { type: "button", onclick: retry }, "Try again"),
  );
}

/** A sentence in which what stands between backticks is code. */
export function hinted(text) {
  const parts = text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));
  return make("p", { class: "hint" }, parts);
}
