// A list, and beside it what was opened in it; on a narrow screen above it.

import { make, say } from "./dom.js";
import { failed, waiting } from "./states.js";
import { isAbort } from "./api.js";

const LATE_MS = 250; // after which a person wonders

export class Panes {
  #controller = new AbortController();

  /**
   * @param title heading of the view.
   * @param label what the part beside the list holds, for who listens.
   * @param list elements on the side of the list.
   * @param onClose called when what is open shall be closed.
   * @param invitation what stands there while nothing is open.
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
   * Opens what `load(signal)` gives: an element whose first heading gets the keyboard, if `withFocus`. What was asked for
   * before is given up. The old stays until the new is there, or is late.
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

  /** Shows that nothing is open. */
  close() {
    this.#controller.abort();
    this.element.classList.remove("open");
    this.detail.ariaBusy = "false";
    this.#show(this.invitation);
  }

  /** Gives up what is asked for. */
  leave() {
    if (this.detail.ariaBusy === "true") this.#controller.abort();
  }

  /** The line above what is open: its heading, and what closes it or goes on. */
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
