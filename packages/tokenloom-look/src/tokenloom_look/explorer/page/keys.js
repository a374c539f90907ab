// Keyboard shortcuts of the page, and the dialog that lists them. Single-letter shortcuts can be switched off there, since
// speech input or typing errors would trigger them (WCAG 2.1.4).

import { make } from "./dom.js";
import { go } from "./routes.js";

const KEY = "tokenloom.letters";

const TOLD = [
  ["/ or g", "jump to a position, step, document or record"],
  ["1 to 5", "overview, samples, documents, search, watch"],
  ["j, k", "next and previous sample or document, while one is open"],
  ["i", "show or hide token ids"],
  ["?", "this list"],
  ["Esc", "close the open sample or document"],
  ["↑ ↓ PageUp PageDown Home End", "move in a list"],
  ["Enter", "open the row of a list"],
  ["Tab", "to the next part of the page"],
];
const VIEWS = ["overview", "samples", "documents", "search", "watch"];

export function startKeys({ step }) {
  const dialog = document.getElementById("keys");
  const letters = make("input", {
    type: "checkbox",
    onchange: () => localStorage.setItem(KEY, letters.checked ? "on" : "off"),
  });
  letters.checked = localStorage.getItem(KEY) !== "off";
  const rows = TOLD.map(([keys, does]) =>
    make("tr", {}, make("th", { scope: "row" }, keys.split(" ").map(written)), make("td", {}, does)),
  );
  dialog.append(
    make(
      "div",
      { class: "detail-bar" },
      make("h2", { id: "keys-title" }, "Keys"),
      make("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, "×"),
    ),
    make("table", {}, make("tbody", {}, rows)),
    make("label", { class: "toggle" }, letters, "Shortcuts of single letters, digits and signs"),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.getElementById("keys-button").addEventListener("click", () => dialog.showModal());

  const does = {
    "/": focusJump,
    g: focusJump,
    "?": () => dialog.showModal(),
    j: () => step(1),
    k: () => step(-1),
    i: () => document.querySelector(".token-bar input")?.click(),
    ...Object.fromEntries(VIEWS.map((view, place) => [String(place + 1), () => go(view)])),
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || isTyping(event.target)) return;
    if (!letters.checked || !Object.hasOwn(does, event.key)) return;
    event.preventDefault();
    does[event.key]();
  });
}

function focusJump() {
  const input = document.getElementById("jump-to");
  input.focus();
  input.select();
}

function isTyping(element) {
  return element instanceof HTMLSelectElement || (element instanceof HTMLInputElement && element.type !== "checkbox");
}

function written(word) {
  return ["or", "to"].includes(word) ? ` ${word} ` : [make("kbd", {}, word.replace(",", "")), " "];
}
