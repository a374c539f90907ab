// Maps scroll positions to rows if all rows together are higher than an element can be.
//
// Browsers limit elements to 17 to 33 million pixels, and 10^8 rows are higher. So the rows are divided into overlapping
// pages: small scrolls move by pixels and change the page without a visible jump, and dragging the scroll bar selects a
// page proportionally.

/** Maximum height of an element in pixels. */
export const MOST_HEIGHT = 4_000_000;
const PAGE_HEIGHT = MOST_HEIGHT / 100;

export class ScrollMap {
  #whole = 0;
  #numPages = 1;
  #squeeze = 0;
  #offset = 0;
  #last = 0;

  /** Sets number and height of rows; keeps the position. */
  resize(numRows, rowHeight) {
    this.#whole = numRows * rowHeight;
    this.height = Math.min(this.#whole, MOST_HEIGHT);
    this.#numPages = Math.max(1, Math.ceil(this.#whole / PAGE_HEIGHT));
    this.#squeeze = this.#numPages > 1 ? (this.#whole - this.height) / (this.#numPages - 1) : 0;
    if (this.#squeeze === 0) this.#offset = 0;
  }

  /** Pixels to add to a place in the element to get the place among all rows. */
  get offset() {
    return this.#offset;
  }

  /** Handles a scroll of the element; returns the scroll position to set, usually the same one. */
  scrolled(scrollTop, viewHeight) {
    if (Math.abs(scrollTop - this.#last) < viewHeight) return this.moveTo(scrollTop + this.#offset, scrollTop);
    const share = (this.#whole - viewHeight) / Math.max(1, this.height - viewHeight);
    this.#offset = this.#offsetOf(scrollTop * share);
    this.#last = scrollTop;
    return scrollTop;
  }

  /** Moves to a place among all rows; returns the scroll position to set. */
  moveTo(top, scrollTop = null) {
    const offset = this.#offsetOf(top);
    this.#last = offset === this.#offset && scrollTop !== null ? scrollTop : top - offset;
    this.#offset = offset;
    return this.#last;
  }

  /** Stores the actual scroll position, which the browser may have rounded. */
  settle(scrollTop) {
    this.#last = scrollTop;
  }

  #offsetOf(top) {
    const page = Math.min(this.#numPages - 1, Math.max(0, Math.floor(top / PAGE_HEIGHT)));
    return Math.round(page * this.#squeeze);
  }
}
