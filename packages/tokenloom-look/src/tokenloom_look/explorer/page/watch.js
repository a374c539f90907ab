// The progress of a job or training loop, requested every second while the view is visible.

import { ask, isAbort } from "./api.js";
import { count, drawn, factList, make, say } from "./dom.js";
import { failed, hinted, nothing, waiting } from "./states.js";

const EVERY_MS = 1000;
const SAY_MS = 30_000; // minimum time between announcements to screen readers

export class WatchView {
  #controller = null;
  #timer = null;
  #isShown = false;
  #charts = new Map();
  #said = -Infinity;

  constructor({ target }) {
    this.title = "Watch";
    if (!target.views.includes("watch")) {
      this.element = nothing(
        "There is no job or training loop to watch.",
        "Start `tokenloom explore` with the folder of a preprocess job, or pass a statistics file with `--follow`.",
      );
      return;
    }
    this.heading = make("h1", { tabindex: -1 }, this.title);
    this.words = make("div", { class: "told" }, waiting());
    this.bar = make("progress", { hidden: true });
    this.facts = make("div");
    this.tables = make("div", { class: "watch-tables" });
    this.charts = make("div", { class: "charts" });
    this.error = make("div");
    this.element = make(
      "div",
      { class: "page" },
      this.heading,
      this.words,
      this.bar,
      this.error,
      this.facts,
      this.charts,
      this.tables,
    );
    document.addEventListener("visibilitychange", () => this.#lookOn());
  }

  show() {
    this.#isShown = true;
    this.#lookOn();
  }

  hide() {
    this.#isShown = false;
    this.#lookOn();
  }

  #lookOn() {
    clearTimeout(this.#timer);
    this.#controller?.abort();
    this.#controller = null;
    if (this.#isShown && this.words && document.visibilityState === "visible") this.#look();
  }

  async #look() {
    const controller = (this.#controller = new AbortController());
    try {
      const state = await ask("watch", {}, controller.signal);
      this.error.replaceChildren();
      this.#tell(state);
      if (state.is_over) return;
    } catch (error) {
      if (isAbort(error)) return;
      this.error.replaceChildren(failed(error, () => this.#lookOn()));
      if (error.status !== 0) return; // retry only if the server does not answer
    }
    if (this.#controller === controller) this.#timer = setTimeout(() => this.#look(), EVERY_MS);
  }

  #tell({ words, progress, facts, html, charts, is_over: isOver }) {
    this.words.replaceChildren(hinted(words));
    if (isOver || performance.now() - this.#said > SAY_MS) {
      say(words);
      this.#said = performance.now();
    }
    this.bar.hidden = !progress;
    if (progress) {
      this.bar.max = Math.max(1, Number(progress.total));
      this.bar.value = Number(progress.done);
      this.bar.setAttribute("aria-label", `${count(progress.done)} of ${count(progress.total)} ${progress.unit}`);
    }
    this.facts.replaceChildren(factList(facts));
    this.tables.replaceChildren(html ? drawn(html) : "");
    tokenloomCharts.drawAll(this.tables); // makes wide tables scrollable by keys
    for (const chart of charts ?? []) {
      if (this.#charts.has(chart.id)) this.#charts.get(chart.id).update(chart);
      else this.#charts.set(chart.id, tokenloomCharts.draw(this.charts, chart));
    }
  }
}
