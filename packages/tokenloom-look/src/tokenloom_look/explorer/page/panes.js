// A list with the opened item beside it; on narrow screens the item covers the list.

import { make, say } from "./dom.js";
import { failed, waiting } from "./states.js";
import { isAbort } from "./api.js";

const LATE_MS = 250; // show "Loading" after this time

export class Panes {
  #controller = new AbortController();

  /**
   * @param title heading of the view.
   * @param label accessible name of the opened item.
   * @param list elements of the list's side.
   * @param onClose called to close the opened item.
   * @param invitation shown while no item is open.
   */
  constructor({ title, label, list, onClose, invitation }) {
    this.heading = make("h1", { tabindex: -1 }, title);
    this.detail = make("section", { class: "detail", "aria-label": label, tabindex: 0 }, invitation);
    this.element = make(
      "div",
      { class: "panes" },
      make("section", { class: "side", "aria-label": title }, this.heading, list),
      this.detail,
    );
    this.invitation = invitation;
    this.onClose = onClose;
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.isOpen || event.defaultPrevented) return;
      event.preventDefault();
      onClose();
    });
  }

  get isOpen() {
    return this.element.classList.contains("open");
  }

  /**
   * Opens the element returned by `load(signal)`; with `withFocus`, focuses its first heading. Aborts the previous load.
   * The old element stays visible until the new one is loaded or late.
   */
  async open(load, { withFocus = false } = {}) {
    this.#controller.abort();
    const controller = (this.#controller = new AbortController());
    this.element.classList.add("open");
    this.detail.ariaBusy = "true";
    const late = setTimeout(
      () => {
        this.#show(waiting());
        say("loading");
      },
      this.detail.firstChild === this.invitation ? 0 : LATE_MS,
    );
    try {
      const opened = await load(controller.signal);
      clearTimeout(late);
      if (!controller.signal.aborted) this.#show(opened);
    } catch (error) {
      clearTimeout(late);
      if (isAbort(error)) return;
      this.#show(failed(error, () => this.open(load, { withFocus })));
    }
    if (controller.signal.aborted) return;
    this.detail.ariaBusy = "false";
    say(this.detail.querySelector("h2")?.textContent ?? "");
    if (withFocus) (this.detail.querySelector("h2") ?? this.detail).focus();
  }

  /** Closes the opened item. */
  close() {
    this.#controller.abort();
    this.element.classList.remove("open");
    this.detail.ariaBusy = "false";
    this.#show(this.invitation);
  }

  /** Aborts the load in progress. */
  leave() {
    if (this.detail.ariaBusy === "true") this.#controller.abort();
  }

  /** Returns the bar above the opened item: its heading, controls, and the button that closes it. */
  bar(heading, ...controls) {
    const close = make(
      "button",
      { type: "button", class: "close", "aria-label": "Close", title: "Close (Esc)", onclick: () => this.onClose() },
      "×",
    );
    return make(
      "div",
      { class: "detail-bar" },
      make("h2", { tabindex: -1 }, make("bdi", {}, heading)),
      make("div", { class: "controls" }, controls, close),
    );
  }

  #show(child) {
    this.detail.replaceChildren(child);
    this.detail.scrollTop = 0;
  }
}
