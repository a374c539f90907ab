// Samples by position; one of them beside the list, token by token, with links to the documents it is made of.

import { ask } from "./api.js";
import { count, counted, factList, lastPart, lossMark, make, moved } from "./dom.js";
import { Panes } from "./panes.js";
import { go, route } from "./routes.js";
import { RowPages } from "./row_pages.js";
import { nothing } from "./states.js";
import { tokenPanel } from "./tokens.js";
import { VirtualList } from "./virtual_list.js";

const MOST_OPEN_SPANS = 6;

const columns = (numbers) => [
  {
    name: "number",
    title: "Position",
    cell: ({ position }) => make("a", { href: route("samples", { position }), tabindex: -1 }, count(position)),
  },
  { name: "number step", title: "Step", cell: ({ step }) => count(step) },
  { name: "name stage", title: "Stage", cell: ({ stage }) => stage ?? "" },
  { name: "name", title: "Source", cell: ({ source }) => sourceName(source, numbers.get(source)) },
  { name: "number loss-of", title: "Loss", cell: lossMark },
  { name: "number spans", title: "Spans", cell: ({ num_spans: spans }) => count(spans) },
  { name: "preview", title: "Begins with", cell: ({ preview }) => preview },
];

export class SamplesView {
  constructor({ target }) {
    this.target = target;
    this.title = "Samples";
    if (!target.has_positions) {
      this.element = nothing(
        "There are no samples to show.",
        "Samples stand at positions of a run or of a single pair. Start `tokenloom explore run.toml`, or with one prefix.",
      );
      return;
    }
    const numbers = new Map(target.sources.length > 12 ? [] : target.sources.map(({ number, name }) => [name, number]));
    this.rows = new RowPages((first, number, signal) => ask("positions", { first, count: number }, signal));
    this.list = new VirtualList({
      label: "Samples by position",
      columns: columns(numbers),
      rows: this.rows,
      onOpen: (position, byKey) => this.#choose(position, byKey),
    });
    this.list.grid.classList.add("samples", target.has_steps ? "with-steps" : "without-steps");
    this.list.grid.classList.toggle("with-losses", target.has_losses);
    const told = make("p", { class: "told" }, "What training sees, in its order.");
    this.rows.addEventListener("rows", ({ detail: { total } }) => {
      told.textContent =
        total === null
          ? "What training sees, in its order; the run has no end."
          : `${counted(total, "sample")}: what training sees, in its order.`;
    });
    this.panes = new Panes({
      title: this.title,
      label: "Opened sample",
      list: [told, this.list.element],
      onClose: () => this.#close(),
      invitation: nothing(
        "Open a sample to see its tokens.",
        "Click one, or press `Enter`. `/` jumps to a position, a step, a document or a record.",
      ),
    });
    this.element = this.panes.element;
    this.list.setTotal(target.num_positions);
  }

  show({ position }) {
    if (!this.panes) return;
    const changed = position !== this.position || !this.panes.isOpen;
    this.position = position;
    this.list.setOpened(position === undefined ? null : Number(position));
    this.list.restore();
    if (position === undefined) this.panes.close();
    else if (changed) this.panes.open((signal) => this.#load(position, signal), { withFocus: this.byKey !== false });
    this.byKey = undefined;
  }

  hide() {
    this.panes?.leave();
    this.rows?.close();
  }

  /** What is open, in words. */
  named({ position }) {
    return position === undefined ? "" : `position ${count(position)}`;
  }

  /** The sample before or after the one that is open. */
  step(by) {
    if (!this.panes?.isOpen || (by < 0 && this.position === "0")) return;
    this.byKey = false;
    go("samples", { position: moved(this.position, by) });
  }

  #choose(position, byKey) {
    this.byKey = byKey;
    go("samples", { position });
  }

  #close() {
    this.panes.close(); // on a narrow screen the list is not there before
    go("samples");
    this.list.focus();
  }

  async #load(position, signal) {
    const answer = await ask("position", { position }, signal);
    const before =
      position === "0"
        ? null
        : make(
            "a",
            {
              class: "button",
              href: route("samples", { position: moved(position, -1) }),
              title: "Sample before (k)",
              "aria-label": "Sample before",
            },
            "‹",
          );
    const after = make(
      "a",
      {
        class: "button",
        href: route("samples", { position: moved(position, 1) }),
        title: "Sample after (j)",
        "aria-label": "Sample after",
      },
      "›",
    );
    const panel = tokenPanel(answer);
    linkHeadings(panel, answer.spans);
    return make(
      "div",
      {},
      this.panes.bar(answer.heading, before, after),
      factList(answer.facts),
      spanTable(answer.spans),
      panel,
    );
  }
}

/** A source with the colour that charts give it. */
function sourceName(name, number) {
  return name === null ? "" : make("span", {}, make("span", { class: `of-source s${number}` }), name);
}

function documentRoute({ source, document, start }) {
  return source === null ? null : route("documents", { source, document, start: start || null });
}

function spanTable(spans) {
  if (!spans.length) return null;
  const withLosses = spans.some(({ loss }) => loss !== undefined) || null;
  const rows = spans.map((span) =>
    make(
      "tr",
      {},
      make(
        "th",
        { scope: "row" },
        make("a", { href: documentRoute(span) }, make("bdi", {}, span.name), ` · ${count(span.document)}`),
      ),
      make("td", { class: "number" }, `${count(span.start)} to ${count(span.stop - 1)}`),
      make("td", { class: "number" }, count(span.num_tokens)),
      withLosses && make("td", { class: "number" }, lossMark(span)),
      make("td", {}, span.denied ? "denied: padding" : lastPart(span.origin ?? "")),
    ),
  );
  const titles = ["Document", "Its tokens", "Of", ...(withLosses ? ["Loss per token"] : []), "Made of"];
  const head = titles.map((title) => make("th", { scope: "col" }, title));
  const table = make("table", { class: "spans" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows));
  return make(
    "details",
    { class: "span-list", open: spans.length <= MOST_OPEN_SPANS },
    make("summary", {}, `${counted(spans.length, "span")}: documents in this sample`),
    make("div", { class: "scrolled" }, table),
  );
}

/** Puts a link to its document behind each heading of a span, and marks those with a high loss. */
function linkHeadings(panel, spans) {
  const sections = [...panel.querySelectorAll("section.document")];
  sections.forEach((section) => {
    const span = spans.find(
      ({ document, start, name }) =>
        String(document) === section.dataset.document &&
        String(start) === section.dataset.start &&
        name === section.dataset.source,
    );
    if (span?.loss_level) section.classList.add(`loss-level-${span.loss_level}`);
    const address = span && documentRoute(span);
    if (address)
      section
        .querySelector("h3")
        ?.append(" ", make("a", { class: "open-document", href: address, "aria-label": "open the document" }, "open"));
  });
}
