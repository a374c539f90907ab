// The view of documents: a list, and the tokens of one document with the positions that read it.

import { ask } from "./api.js";
import { count, counted, factList, lastPart, make } from "./dom.js";
import { occurrences } from "./occurrences.js";
import { Panes } from "./panes.js";
import { go, route } from "./routes.js";
import { RowPages } from "./row_pages.js";
import { nothing } from "./states.js";
import { markTokens, tokenPanel } from "./tokens.js";
import { VirtualList } from "./virtual_list.js";

const PAGE_TOKENS = 1024;

export class DocumentsView {
  constructor({ target }) {
    this.target = target;
    this.title = "Documents";
    if (!target.sources.length) {
      this.element = nothing(
        "There are no documents yet.",
        "The job has not finished its output. `Watch` shows its progress.",
      );
      return;
    }
    this.picker = make(
      "select",
      { id: "source", onchange: () => go("documents", { source: this.picker.value }) },
      target.sources.map(({ number, name }) => make("option", { value: number }, name)),
    );
    this.told = make("p", { class: "told" });
    this.holder = make("div", { class: "list-holder" });
    const pick = make("p", { class: "pick" }, make("label", { for: "source" }, "Source"), this.picker);
    this.panes = new Panes({
      title: this.title,
      label: "Opened document",
      list: [pick, this.told, this.holder],
      onClose: () => this.#close(),
      invitation: nothing(
        "Open a document to see its tokens.",
        "Click one, or press `Enter`. `/` jumps to a document `SOURCE:INDEX` or a record `FILE:LINE`.",
      ),
    });
    this.element = this.panes.element;
    this.lists = new Map();
  }

  show({ source = "0", document, first, start, length }) {
    if (!this.panes) return;
    if (!(Number(source) < this.target.num_sources)) {
      go("documents", {}, { replace: true });
      return;
    }
    this.#showList(this.target.sources[source] ?? { number: Number(source), name: `source ${source}` });
    this.list.setOpened(document === undefined ? null : Number(document));
    this.list.restore();
    const opened = document === undefined ? null : [source, document, first, start, length].join(":");
    if (opened === null) this.panes.close();
    else if (opened !== this.opened || !this.panes.isOpen) {
      this.panes.open((signal) => this.#load({ source, document, first, start, length }, signal), {
        withFocus: this.byKey !== false,
      });
    }
    this.opened = opened;
    this.byKey = undefined;
    this.document = document;
  }

  hide() {
    this.panes?.leave();
    this.rows?.close();
  }

  /** Returns the name of the open document. */
  named({ document }) {
    return document === undefined ? "" : `document ${count(document)} of ${this.source.name}`;
  }

  /** Opens the next or previous document. */
  step(by) {
    if (!this.panes?.isOpen) return;
    const document = Number(this.document) + by;
    if (document < 0 || document >= this.list.numRows) return;
    this.byKey = false;
    go("documents", { source: this.source.number, document });
  }

  #showList(source) {
    if (this.source?.number === source.number) return;
    this.rows?.close();
    this.source = source;
    this.picker.value = source.number;
    this.told.textContent =
      source.num_documents === undefined
        ? ""
        : `${counted(source.num_documents, "document")}, ${counted(source.num_tokens, "token")}.`;
    if (!this.lists.has(source.number)) this.lists.set(source.number, this.#newList(source));
    ({ rows: this.rows, list: this.list } = this.lists.get(source.number));
    this.holder.replaceChildren(this.list.element);
  }

  #newList(source) {
    const columns = [
      {
        name: "number",
        title: "Document",
        cell: ({ document }) =>
          make("a", { href: route("documents", { source: source.number, document }), tabindex: -1 }, count(document)),
      },
      { name: "number tokens-of", title: "Tokens", cell: ({ num_tokens: tokens }) => count(tokens) },
      { name: "preview", title: "Begins with", cell: ({ preview }) => preview },
      {
        name: "name origin-of",
        title: "Origin",
        cell: ({ file, record }) => (file === null ? "" : lastPart(`${file}:${record}`)),
      },
    ];
    const rows = new RowPages((first, number, signal) =>
      ask("documents", { source: source.number, first, count: number }, signal),
    );
    const list = new VirtualList({
      label: `Documents of ${source.name}`,
      columns,
      rows,
      onOpen: (document, byKey) => {
        this.byKey = byKey;
        go("documents", { source: source.number, document });
      },
    });
    list.grid.classList.add("documents");
    list.setTotal(source.num_documents ?? null);
    return { rows, list };
  }

  #close() {
    this.panes.close(); // first, since narrow screens hide the list until then
    go("documents", { source: this.source.number });
    this.list.focus();
  }

  /** Loads the page of a document that contains token `first`, or token `start`, which is then marked. */
  async #load({ source, document, first, start, length }, signal) {
    const page = Math.floor(Number(first ?? start ?? 0) / PAGE_TOKENS) * PAGE_TOKENS;
    const answer = await ask("document", { source, document, first: page, count: PAGE_TOKENS }, signal);
    const panel = tokenPanel(answer);
    if (start !== undefined) markTokens(panel, Number(start), Number(length ?? 1));
    const parts = [
      this.panes.bar(answer.heading),
      factList(answer.facts),
      pager(source, document, answer),
      panel,
      pager(source, document, answer),
    ];
    if (this.target.has_occurrences) parts.push(occurrences(source, document, this.target.has_losses));
    return make("div", {}, parts);
  }
}

/** Returns links to the pages of a long document; null if it has only one page. */
function pager(source, document, { first, count: shown, num_tokens: whole }) {
  if (shown >= whole) return null;
  const last = Math.floor((whole - 1) / PAGE_TOKENS) * PAGE_TOKENS;
  const link = (text, label, at) => {
    const isHere = at === first || at < 0 || at > last;
    if (isHere) return make("span", { class: "button off" }, text);
    return make(
      "a",
      { class: "button", "aria-label": label, href: route("documents", { source, document, first: at }) },
      text,
    );
  };
  return make(
    "nav",
    { class: "pager", "aria-label": "Pages of the document" },
    link("«", "First page", 0),
    link("‹", "Previous page", first - PAGE_TOKENS),
    make("span", {}, `tokens ${count(first)} to ${count(first + shown - 1)} of ${count(whole)}`),
    link("›", "Next page", first + PAGE_TOKENS),
    link("»", "Last page", last),
  );
}
