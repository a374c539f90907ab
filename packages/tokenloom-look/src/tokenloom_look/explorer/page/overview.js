// The overview: facts about the target, and the sections of its report, loaded one by one, visible ones first.

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
    this.found = make(
      "ul",
      {},
      target.notes.map((note) => make("li", {}, ...hinted(note).childNodes)),
    );
    this.looking = make("p", {}, "Loading sections …");
    this.findings = make(
      "section",
      { class: "findings", "aria-labelledby": "findings" },
      make("h2", { id: "findings" }, "Findings"),
      this.found,
      this.looking,
    );
    this.sections = target.sections.map(({ id, title }) => ({
      id,
      title,
      body: make("div", { class: "section-body" }, waiting()),
    }));
    this.#waiting = [...this.sections];
    for (const section of this.sections) {
      section.link = make("li", {}, make("a", { href: route("overview", { section: section.id }) }, section.title));
      section.heading = make("h2", { id: `section-${section.id}`, tabindex: -1 }, section.title);
      section.element = make(
        "section",
        { class: "report-section", "aria-labelledby": section.heading.id },
        section.heading,
        section.body,
      );
    }
    this.element = make(
      "div",
      { class: "page overview" },
      this.heading,
      make("p", { class: "told" }, `${capital(target.kind)} `, make("bdi", {}, target.name)),
      factList(target.facts),
      this.findings,
      make(
        "nav",
        { class: "contents", "aria-label": "Sections" },
        make(
          "ul",
          {},
          this.sections.map(({ link }) => link),
        ),
      ),
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
    this.looking.textContent = this.found.childElementCount ? "" : "No anomalies were found.";
    this.findings.classList.toggle("none", !this.found.childElementCount);
    say("all sections are loaded");
  }

  #next() {
    if (this.#waiting.includes(this.wanted)) return this.wanted;
    return this.#waiting.find(({ element }) => isSeen(element)) ?? this.#waiting[0];
  }

  async #fill(section, signal) {
    try {
      const { html, charts, findings } = await ask("section", { id: section.id }, signal);
      const isEmpty = !html && !charts.length;
      section.element.hidden = section.link.hidden = isEmpty;
      for (const finding of findings ?? []) {
        this.found.append(
          make(
            "li",
            {},
            make("bdi", {}, finding),
            " ",
            make("a", { href: route("overview", { section: section.id }) }, section.title),
          ),
        );
      }
      const words = drawn(html, { class: "section-html" });
      section.body.replaceChildren();
      drawCharts(section.body, charts);
      section.body.append(charts.length ? make("details", {}, make("summary", {}, "Numbers"), words) : words);
    } catch (error) {
      if (isAbort(error)) return;
      section.body.replaceChildren(
        failed(error, () => {
          section.body.replaceChildren(waiting());
          this.#waiting.unshift(section);
          this.#load(section);
        }),
      );
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
