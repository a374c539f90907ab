// Where rows stand in an element that cannot be as high as all of them.
//
// Browsers cut elements off at 17 to 33 million pixels, and 10^8 rows are higher. So the element has pages, which overlap:
// what scrolls a little moves by pixels and sees its page change unnoticed; what drags the bar far goes to the page that
// has the same share of all pages.

/** Pixels of the highest element. */
export const MOST_HEIGHT = 4_000_000;
const PAGE_HEIGHT = MOST_HEIGHT / 100;

export class ScrollMap {
  #whole = 0;
  #numPages = 1;
  #squeeze = 0;
  #offset = 0;
  #last = 0;

  /** Takes how many rows of which height there are; where it stands stays. */
  resize(numRows, rowHeight) {
    this.#whole = numRows * rowHeight;
    this.height = Math.min(this.#whole, MOST_HEIGHT);
    this.#numPages = Math.max(1, Math.ceil(this.#whole / PAGE_HEIGHT));
    this.#squeeze = this.#numPages > 1 ? (this.#whole - this.height) / (this.#numPages - 1) : 0;
    if (this.#squeeze === 0) this.#offset = 0;
  }

  /** Pixels between a place among all rows and the same place in the element. */
  get offset() {
    return this.#offset;
  }

  /** Takes where the element was scrolled to; returns where it has to be scrolled to, mostly the same. */
  scrolled(scrollTop, viewHeight) {
    if (Math.abs(scrollTop - this.#last) < viewHeight) return this.moveTo(scrollTop + this.#offset, scrollTop);
    const share = (this.#whole - viewHeight) / Math.max(1, this.height - viewHeight);
    this.#offset = this.#offsetOf(scrollTop * share);
    this.#last = scrollTop;
    return scrollTop;
  }

  /** Goes to a place among all rows; returns where the element has to be scrolled to. */
  moveTo(top, scrollTop = null) {
    const offset = this.#offsetOf(top);
    this.#last = offset === this.#offset && scrollTop !== null ? scrollTop : top - offset;
    this.#offset = offset;
    return this.#last;
  }

  /** Takes where the browser put the element, which may be a fraction beside what was asked. */
  settle(scrollTop) {
    this.#last = scrollTop;
  }

  #offsetOf(top) {
    const page = Math.min(this.#numPages - 1, Math.max(0, Math.floor(top / PAGE_HEIGHT)));
    return Math.round(page * this.#squeeze);
  }
}
