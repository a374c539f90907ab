// The table of positions that read a document, loaded page by page.

import { ask } from "./api.js";
import { count, lossMark, make } from "./dom.js";
import { route } from "./routes.js";
import { failed, waiting } from "./states.js";

const ROWS = 50;
const TITLES = ["Position", "Step", "Stage", "Pass", "Tokens of the document", "Loss per token", "State"];
const STATES = { true: "consumed", false: "not yet read" };

/** Returns an element that loads its table once it is scrolled into view. */
export function occurrences(source, document, withLosses) {
  const body = make("tbody");
  const told = make("div", { class: "told", role: "status" });
  const more = make("button", { type: "button", hidden: true, onclick: () => load() }, "Show more");
  const titles = TITLES.filter((title) => withLosses || title !== "Loss per token");
  const heads = titles.map((title) => make("th", { scope: "col" }, title));
  const table = make("table", { class: "occurrences", hidden: true }, make("thead", {}, make("tr", {}, heads)), body);

  async function load() {
    more.hidden = true;
    told.replaceChildren(waiting("Loading positions …"));
    try {
      const {
        total,
        rows,
        stop,
        has_end: hasEnd,
      } = await ask("occurrences", { source, document, first: body.rows.length, count: ROWS });
      body.append(...rows.map((row) => line(row, withLosses)));
      table.hidden = body.rows.length === 0;
      more.hidden = body.rows.length >= Number(total);
      told.textContent = summary(total, body.rows.length, hasEnd === false ? stop : null);
    } catch (error) {
      told.replaceChildren(failed(error, load));
    }
  }

  const element = make(
    "section",
    { class: "occurrence-list", "aria-label": "Positions that read it" },
    make("h3", {}, "Positions that read it"),
    told,
    make("div", { class: "scrolled" }, table),
    more,
  );
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    seen.disconnect();
    load();
  });
  seen.observe(element);
  return element;
}

function summary(total, shown, stop) {
  const until = stop === null ? "" : ` before position ${count(stop)}`;
  if (Number(total) === 0) return `No sample reads it${until}.`;
  const some = shown < Number(total) ? `; the first ${count(shown)} are shown` : "";
  return `Training reads it ${Number(total) === 1 ? "once" : `${count(total)} times`}${until}${some}.`;
}

function line(row, withLosses) {
  const { position, step, stage, pass, start, length, seen, denied } = row;
  const state = denied ? "denied: padding" : (STATES[seen] ?? "");
  return make(
    "tr",
    {},
    make("th", { scope: "row", class: "number" }, make("a", { href: route("samples", { position }) }, count(position))),
    make("td", { class: "number" }, count(step)),
    make("td", {}, make("bdi", {}, stage ?? "")),
    make("td", { class: "number" }, count(pass)),
    make("td", { class: "number" }, `${count(start)} to ${count(start + length - 1)}`),
    withLosses ? make("td", { class: "number" }, lossMark(row)) : null,
    make("td", {}, state),
  );
}
