// Two runs side by side: what differs, from which position on, and what both have at every position.

import { ask } from "./api.js";
import { count, drawCharts, drawn, lastPart, make } from "./dom.js";
import { go, route } from "./routes.js";
import { RowPages } from "./row_pages.js";
import { failed, hinted, nothing, waiting } from "./states.js";
import { VirtualList } from "./virtual_list.js";

export class CompareView {
  #isAsked = false;

  constructor({ target }) {
    this.title = "Compare";
    this.target = target;
    if (target.compared === null) {
      this.element = nothing(
        "There is no second run to compare with.",
        "Start `tokenloom explore run.toml --compare other/run.toml` to see two runs side by side.",
      );
      return;
    }
    this.heading = make("h1", { tabindex: -1 }, this.title);
    this.summary = make(
      "div",
      { class: "compare-summary", role: "region", "aria-label": "What differs", tabindex: 0 },
      waiting("Comparing …"),
    );
    this.rows = new RowPages((first, number, signal) => ask("compare/positions", { first, count: number }, signal));
    this.list = new VirtualList({
      label: "Positions of both runs",
      columns: columns(target),
      rows: this.rows,
      onOpen: (position) => go("compare", { position }),
    });
    this.list.grid.classList.add("compared");
    this.element = make("div", { class: "compare" }, this.heading, this.summary, this.list.element);
    this.list.setTotal(null);
  }

  show({ position }) {
    if (!this.list) return;
    this.list.setOpened(position === undefined ? null : Number(position));
    this.list.restore();
    if (!this.#isAsked) this.#load();
  }

  hide() {
    this.rows?.close();
  }

  async #load() {
    this.#isAsked = true;
    try {
      this.#tell(await ask("compare"));
    } catch (error) {
      this.#isAsked = false;
      this.summary.replaceChildren(
        failed(error, () => {
          this.summary.replaceChildren(waiting("Comparing …"));
          this.#load();
        }),
      );
    }
  }

  #tell({ summary, settings, first_difference: first, html, charts }) {
    const words = (Array.isArray(summary) ? summary : [summary]).map(hinted);
    const jump =
      first &&
      make(
        "p",
        {},
        make(
          "a",
          { class: "button", href: route("compare", { position: first.position }) },
          `Go to position ${count(first.position)}, the first that differs`,
        ),
      );
    const more = make(
      "div",
      {},
      settings?.length ? settingTable(settings, this.target) : null,
      html ? drawn(html) : null,
    );
    const details = make("details", {}, make("summary", {}, "Settings, sources and blends of both"), more);
    // Charts take their width from their place, which has none before it is open.
    details.addEventListener("toggle", () => drawCharts(more, charts), { once: true });
    this.summary.replaceChildren(...words, jump ?? "", details);
  }
}

function columns(target) {
  return [
    {
      name: "number",
      title: "Position",
      cell: ({ position }) => make("a", { href: route("samples", { position }), tabindex: -1 }, count(position)),
    },
    {
      name: "same",
      title: "",
      cell: ({ same }) =>
        same ? make("span", { class: "is-same" }, "same") : make("span", { class: "is-other" }, "differs"),
    },
    { name: "left", title: lastPart(target.name, 2), cell: ({ left }) => side(left) },
    { name: "right", title: lastPart(target.compared, 2), cell: ({ right }) => side(right) },
  ];
}

function side(sample) {
  if (sample === null) return make("span", { class: "is-gone" }, "the run has ended");
  const where = [sample.stage, sample.source].filter(Boolean).join(" · ");
  return make("span", {}, make("b", {}, where), " ", make("span", { class: "preview" }, sample.preview));
}

function settingTable(settings, target) {
  const head = ["Setting", lastPart(target.name, 2), lastPart(target.compared, 2)].map((title) =>
    make("th", { scope: "col" }, title),
  );
  const rows = settings.map(({ name, before, after }) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("bdi", {}, name)),
      make("td", {}, make("bdi", {}, before)),
      make("td", {}, make("bdi", {}, after)),
    ),
  );
  return make(
    "table",
    {},
    make("caption", {}, "Settings that differ"),
    make("thead", {}, make("tr", {}, head)),
    make("tbody", {}, rows),
  );
}
