// Loads the visible rows of a long list, page by page, with a cache.

import { isAbort } from "./api.js";

const PAGE = 50;
const MOST_PAGES = 60;
const WAIT_MS = 80;

export class RowPages extends EventTarget {
  #askRows;
  #pages = new Map();
  #asked = new Map();
  #timer = null;
  #lastWanted = 0;
  #wanted = [0, 0];

  /**
   * `askRows` loads rows: `(first, count, signal) => {total, rows}`. Dispatches `rows` when rows arrive, and `failed`
   * with `error` set when loading fails.
   */
  constructor(askRows) {
    super();
    this.#askRows = askRows;
    this.error = null;
  }

  /** Returns a row; undefined until it is loaded. */
  get(index) {
    const page = Math.floor(index / PAGE);
    return this.#pages.get(page)?.[index - page * PAGE];
  }

  /** Loads the visible rows [start, stop): immediately after a pause, or once scrolling stops. */
  want(start, stop) {
    this.#wanted = [Math.floor(start / PAGE), Math.floor(Math.max(start, stop - 1) / PAGE)];
    this.#dropOutdated();
    clearTimeout(this.#timer);
    const now = performance.now();
    const isFirst = now - this.#lastWanted > WAIT_MS;
    this.#lastWanted = now;
    if (isFirst) this.#askMissing();
    else this.#timer = setTimeout(() => this.#askMissing(), WAIT_MS);
  }

  /** Retries after an error. */
  retry() {
    this.error = null;
    this.#askMissing();
  }

  /** Aborts all requests. */
  close() {
    clearTimeout(this.#timer);
    for (const controller of this.#asked.values()) controller.abort();
    this.#asked.clear();
  }

  #dropOutdated() {
    for (const [page, controller] of this.#asked) {
      if (page >= this.#wanted[0] && page <= this.#wanted[1]) continue;
      controller.abort();
      this.#asked.delete(page);
    }
  }

  #askMissing() {
    for (let page = this.#wanted[0]; page <= this.#wanted[1]; page++) {
      if (!this.#pages.has(page) && !this.#asked.has(page) && this.error === null) this.#askPage(page);
    }
  }

  async #askPage(page) {
    const controller = new AbortController();
    this.#asked.set(page, controller);
    try {
      const answer = await this.#askRows(page * PAGE, PAGE, controller.signal);
      this.#pages.set(page, answer.rows);
      if (this.#pages.size > MOST_PAGES) this.#pages.delete(this.#farthest());
      this.dispatchEvent(new CustomEvent("rows", { detail: answer }));
    } catch (error) {
      if (isAbort(error)) return;
      this.error = error;
      this.dispatchEvent(new Event("failed"));
    } finally {
      if (this.#asked.get(page) === controller) this.#asked.delete(page);
    }
  }

  #farthest() {
    const middle = (this.#wanted[0] + this.#wanted[1]) / 2;
    return [...this.#pages.keys()].reduce((far, page) =>
      Math.abs(page - middle) > Math.abs(far - middle) ? page : far,
    );
  }
}
