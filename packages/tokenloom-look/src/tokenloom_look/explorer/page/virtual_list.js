// A list of any length that keeps only visible rows in the page: a grid with keyboard navigation.

import { count, make } from "./dom.js";
import { ScrollMap } from "./scroll_map.js";
import { failed, waiting } from "./states.js";

const SPARE_ROWS = 8;
const GROWTH = 10_000; // rows that an endless list adds ahead of the scroll position
const FALLBACK_HEIGHT = 40;

export class VirtualList {
  #rows;
  #columns;
  #onOpen;
  #map = new ScrollMap();
  #drawn = new Map();
  #numRows = 0;
  #isEndless = false;
  #rowHeight = 0;
  #active = 0;
  #opened = null;
  #shownTop = 0;
  #revealed = null;
  #isPlanned = false;

  /**
   * @param label accessible name of the list.
   * @param columns `{name, title, cell(row, index)}`: class, heading, and content as text or node.
   * @param rows the `RowPages`.
   * @param onOpen called with the index of the opened row, and whether it was opened by a key.
   */
  constructor({ label, columns, rows, onOpen }) {
    this.#rows = rows;
    this.#columns = columns;
    this.#onOpen = onOpen;
    const headings = columns.map(({ name, title }) =>
      make("span", { role: "columnheader", class: `cell ${name}` }, title),
    );
    this.head = make(
      "div",
      { role: "rowgroup", class: "list-head" },
      make("div", { role: "row", class: "row", "aria-rowindex": 1 }, headings),
    );
    this.spacer = make("div", { role: "none", class: "list-spacer" });
    this.scroller = make("div", { role: "rowgroup", class: "list-rows", onscroll: () => this.#plan() }, this.spacer);
    this.error = make("div", { class: "list-error" }, waiting());
    this.grid = make(
      "div",
      { role: "grid", class: "list unknown", "aria-label": label, onkeydown: (event) => this.#press(event) },
      this.head,
      this.scroller,
    );
    this.element = make("div", { class: "list-frame" }, this.grid, this.error);
    rows.addEventListener("rows", (event) => this.#arrived(event.detail.total));
    rows.addEventListener("failed", () => this.#failed());
    new ResizeObserver(() => this.#resized()).observe(this.scroller);
  }

  /** Sets the number of rows; null if it is unknown or the list is endless. */
  setTotal(total) {
    if (total !== null) this.#told();
    this.#isEndless = total === null;
    this.#numRows = this.#isEndless
      ? Math.max(this.#numRows, GROWTH)
      : Math.min(Number(total), Number.MAX_SAFE_INTEGER);
    this.grid.setAttribute("aria-rowcount", this.#isEndless ? -1 : this.#numRows + 1);
    this.#resized();
  }

  get numRows() {
    return this.#numRows;
  }

  /** Marks the opened row and scrolls to it; null for none. */
  setOpened(index) {
    this.#opened = index;
    if (index !== null) this.reveal(index);
    for (const [number, row] of this.#drawn) row.setAttribute("aria-selected", number === index);
  }

  /** Scrolls to a row if it is out of view, and makes it the tab stop. */
  reveal(index) {
    if (this.#isEndless && index + GROWTH > this.#numRows) this.#grow(index);
    this.#active = Math.max(0, Math.min(this.#numRows - 1, index));
    this.#revealed = this.#rowHeight && this.scroller.clientHeight ? null : index;
    if (this.#revealed === null) this.#bringIntoView(this.#active, true);
  }

  /** Focuses the row that is the tab stop. */
  focus() {
    this.#draw();
    this.#drawn.get(this.#active)?.focus({ preventScroll: true });
  }

  /** Redraws all visible rows, after the data has changed. */
  redraw() {
    for (const row of this.#drawn.values()) row.remove();
    this.#drawn.clear();
    this.#draw();
  }

  /** Restores the scroll position, which hidden elements lose. */
  restore() {
    if (this.scroller.clientHeight) this.scroller.scrollTop = this.#shownTop - this.#map.offset;
    this.#plan();
  }

  #grow(index) {
    this.#numRows = index + 2 * GROWTH;
    this.#resized();
  }

  #told() {
    this.grid.classList.remove("unknown");
    this.error.replaceChildren();
  }

  #arrived(total) {
    this.#told();
    if (total !== undefined && (total === null ? !this.#isEndless : Number(total) !== this.#numRows))
      this.setTotal(total);
    this.#plan();
  }

  #failed() {
    this.error.replaceChildren(
      failed(this.#rows.error, () => {
        this.error.replaceChildren();
        this.#rows.retry();
      }),
    );
  }

  #resized() {
    if (!this.scroller.clientHeight) return;
    this.#rowHeight = this.head.firstChild.offsetHeight || FALLBACK_HEIGHT;
    this.#map.resize(this.#numRows, this.#rowHeight);
    this.spacer.style.height = `${this.#map.height}px`;
    if (this.#revealed !== null) {
      const index = this.#revealed;
      this.#revealed = null;
      this.#bringIntoView(Math.min(index, this.#numRows - 1), true);
    }
    this.#drawn.forEach((row, index) => this.#place(row, index));
    this.#plan();
  }

  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    requestAnimationFrame(() => {
      this.#isPlanned = false;
      this.#draw();
    });
  }

  #draw() {
    const height = this.scroller.clientHeight;
    if (!height || !this.#rowHeight) return;
    const before = this.#map.offset;
    const asked = this.#map.scrolled(this.scroller.scrollTop, height);
    if (asked !== this.scroller.scrollTop) this.#scrollTo(asked);
    this.#shownTop = this.scroller.scrollTop + this.#map.offset;
    const start = Math.max(0, Math.floor(this.#shownTop / this.#rowHeight));
    const stop = Math.min(this.#numRows, Math.ceil((this.#shownTop + height) / this.#rowHeight));
    if (this.#isEndless && stop + GROWTH / 2 > this.#numRows) {
      this.#grow(stop);
      return;
    }
    if (stop > start) this.#rows.want(start, stop);
    this.#keepRows(
      Math.max(0, start - SPARE_ROWS),
      Math.min(this.#numRows, stop + SPARE_ROWS),
      before !== this.#map.offset,
    );
  }

  #scrollTo(scrollTop) {
    this.scroller.scrollTop = scrollTop;
    this.#map.settle(this.scroller.scrollTop);
  }

  #keepRows(start, stop, areMoved) {
    if (this.#active >= this.#numRows) this.#active = Math.max(0, this.#numRows - 1);
    const focused = this.grid.contains(document.activeElement) ? this.#active : null; // keep the focused row
    if (focused === null && this.#opened === null && (this.#active < start || this.#active >= stop))
      this.#active = Math.min(stop - 1, start + SPARE_ROWS);
    for (const [index, row] of this.#drawn) {
      if ((index < start || index >= stop) && index !== focused) {
        row.remove();
        this.#drawn.delete(index);
      } else if (areMoved) this.#place(row, index);
    }
    const isTabStopHere = this.#active >= start && this.#active < stop;
    const tabStop = isTabStopHere || focused !== null ? this.#active : Math.min(stop - 1, start + SPARE_ROWS);
    for (let index = start; index < stop; index++) {
      const row = this.#drawn.get(index) ?? this.#newRow(index);
      if (row.ariaBusy === "true") this.#fill(row, index);
      row.tabIndex = index === tabStop ? 0 : -1;
    }
  }

  #newRow(index) {
    const row = make("div", {
      role: "row",
      class: "row",
      "aria-rowindex": index + 2,
      "aria-selected": String(index === this.#opened),
      "aria-busy": "true",
      tabindex: -1,
    });
    row.addEventListener("click", (event) => this.#click(event, index));
    row.addEventListener("focus", () => {
      this.#active = index;
    });
    row.append(make("span", { role: "gridcell", class: "cell number" }, count(index)));
    this.#place(row, index);
    this.#drawn.set(index, row);
    const after = [...this.spacer.children].find((other) => Number(other.ariaRowIndex) > index + 2);
    this.spacer.insertBefore(row, after ?? null);
    return row;
  }

  #fill(row, index) {
    const data = this.#rows.get(index);
    if (data === undefined) return;
    const cells = this.#columns.map(({ name, cell }) =>
      make("span", { role: "gridcell", class: `cell ${name}` }, cell(data, index)),
    );
    row.replaceChildren(...cells);
    row.ariaBusy = "false";
  }

  #place(row, index) {
    row.style.top = `${index * this.#rowHeight - this.#map.offset}px`;
  }

  #click(event, index) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return; // let the browser open a new tab
    event.preventDefault();
    this.#active = index;
    this.#drawn.get(index)?.focus({ preventScroll: true });
    this.#onOpen(index, false);
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.#rowHeight) - 1);
    const steps = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -this.#active,
      End: this.#numRows - 1 - this.#active,
    };
    if (event.key in steps) {
      event.preventDefault();
      this.#active = Math.max(0, Math.min(this.#numRows - 1, this.#active + steps[event.key]));
      this.#bringIntoView(this.#active, false);
      this.focus();
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.#onOpen(this.#active, true);
    }
  }

  #bringIntoView(index, inMiddle) {
    const height = this.scroller.clientHeight;
    const top = index * this.#rowHeight;
    const shown = this.scroller.scrollTop + this.#map.offset;
    if (top >= shown && top + this.#rowHeight <= shown + height) return;
    const near = top < shown ? top : top + this.#rowHeight - height;
    const place = inMiddle ? top - (height - this.#rowHeight) / 2 : near;
    const most = Math.max(0, this.#numRows * this.#rowHeight - height);
    this.#scrollTo(this.#map.moveTo(Math.max(0, Math.min(most, place))));
    for (const [number, row] of this.#drawn) this.#place(row, number);
    this.#draw();
  }
}
