// The view of samples: a list by position, and the tokens of one sample with links to its documents.

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
        "Only runs and single pairs have samples. Start `tokenloom explore` with a run.toml or one prefix.",
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
    const told = make("p", { class: "told" }, "Samples in the order of training.");
    this.rows.addEventListener("rows", ({ detail: { total } }) => {
      told.textContent =
        total === null
          ? "Samples in the order of training; the run has no end."
          : `${counted(total, "sample")} in the order of training.`;
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

  /** Returns the name of the open sample. */
  named({ position }) {
    return position === undefined ? "" : `position ${count(position)}`;
  }

  /** Opens the next or previous sample. */
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
    this.panes.close(); // first, since narrow screens hide the list until then
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
              title: "Previous sample (k)",
              "aria-label": "Previous sample",
            },
            "‹",
          );
    const after = make(
      "a",
      {
        class: "button",
        href: route("samples", { position: moved(position, 1) }),
        title: "Next sample (j)",
        "aria-label": "Next sample",
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

/** Returns the name of a source with its colour in charts. */
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
  const losses = withLosses ? ["Loss per token"] : [];
  const titles = ["Document", "Tokens of the document", "Length of the document", ...losses, "Origin"];
  const head = titles.map((title) => make("th", { scope: "col" }, title));
  const table = make("table", { class: "spans" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows));
  return make(
    "details",
    { class: "span-list", open: spans.length <= MOST_OPEN_SPANS },
    make("summary", {}, `${counted(spans.length, "span")}: documents in this sample`),
    make("div", { class: "scrolled" }, table),
  );
}

/** Adds a link to its document to each heading of a span, and marks spans with a high loss. */
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
