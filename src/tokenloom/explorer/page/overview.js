// What the target is, and the sections of its report, one after the other, the one that is looked at first.

import { ask, isAbort } from "./api.js";
import { drawCharts, drawn, factList, make, say } from "./dom.js";
import { route } from "./routes.js";
import { failed, hinted, waiting } from "./states.js";

export class OverviewView {
  #waiting = [];
  #controller = null;

  constructor({ target }) {
    this.title = "Overview";
    this.heading = make("h1", { tabindex: -1 }, "Overview");
    const notes = (target.notes ?? []).map((note) => make("li", {}, ...hinted(note).childNodes));
    this.sections = target.sections.map(({ id, title }) => ({ id, title, body: make("div", { class: "section-body" }, waiting()) }));
    this.#waiting = [...this.sections];
    const links = this.sections.map(({ id, title }) => make("li", {}, make("a", { href: route("overview", { section: id }) }, title)));
    for (const section of this.sections) {
      section.heading = make("h2", { id: `section-${section.id}`, tabindex: -1 }, section.title);
      section.element = make("section", { class: "report-section", "aria-labelledby": section.heading.id }, section.heading, section.body);
    }
    this.element = make(
      "div",
      { class: "page overview" },
      this.heading,
      make("p", { class: "told" }, `${capital(target.kind)} `, make("bdi", {}, target.name)),
      factList(target.facts),
      notes.length ? make("ul", { class: "notes" }, notes) : null,
      links.length > 1 ? make("nav", { class: "contents", "aria-label": "Sections" }, make("ul", {}, links)) : null,
      this.sections.map(({ element }) => element),
    );
  }

  show({ section }) {
    const found = this.sections.find(({ id }) => id === section);
    if (found) {
      found.element.scrollIntoView();
      found.heading.focus({ preventScroll: true });
    }
    this.#load(found);
  }

  hide() {
    this.#controller?.abort();
    this.#controller = null;
  }

  async #load(wanted) {
    this.wanted = wanted;
    if (this.#controller) return;
    const controller = (this.#controller = new AbortController());
    while (this.#waiting.length && this.#controller === controller) await this.#fill(this.#next(), controller.signal);
    if (this.#controller !== controller) return;
    this.#controller = null;
    say("all sections are there");
  }

  #next() {
    if (this.#waiting.includes(this.wanted)) return this.wanted;
    return this.#waiting.find(({ element }) => isSeen(element)) ?? this.#waiting[0];
  }

  async #fill(section, signal) {
    try {
      const { html, charts } = await ask("section", { id: section.id }, signal);
      section.body.replaceChildren(drawn(html, { class: "section-html" }));
      drawCharts(section.body, charts);
    } catch (error) {
      if (isAbort(error)) return;
      section.body.replaceChildren(failed(error, () => {
        section.body.replaceChildren(waiting());
        this.#waiting.unshift(section);
        this.#load(section);
      }));
    }
    this.#waiting = this.#waiting.filter((other) => other !== section);
  }
}

function isSeen(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}
