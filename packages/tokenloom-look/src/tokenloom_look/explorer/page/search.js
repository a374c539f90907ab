// The search view: requests parts of a search until it is complete, and shows matches as they arrive.

import { ask, isAbort } from "./api.js";
import { count, counted, drawn, make, say } from "./dom.js";
import { go, route } from "./routes.js";
import { failed, nothing } from "./states.js";

const MOST_AT_ONCE = 500; // pause the search after this many matches

export class SearchView {
  #controller = null;
  #asked = null;
  #cursor = null;
  #found = 0;
  #pause = MOST_AT_ONCE;

  constructor({ target }) {
    this.title = "Search";
    if (!target.sources.length) {
      this.element = nothing(
        "There is nothing to search yet.",
        "The job has not finished its output. `Watch` shows its progress.",
      );
      return;
    }
    this.names = new Map(target.sources.map(({ number, name }) => [String(number), name]));
    this.heading = make("h1", { tabindex: -1 }, this.title);
    this.words = make("input", { id: "search-for", type: "search", spellcheck: "false", autocomplete: "off" });
    this.kind = make(
      "select",
      { id: "search-kind" },
      make("option", { value: "text" }, "text"),
      make("option", { value: "ids" }, "token ids"),
    );
    this.kind.addEventListener("change", () => this.#tellExample());
    this.source = make(
      "select",
      { id: "search-source" },
      make("option", { value: "" }, "all sources"),
      target.sources.map(({ number, name }) => make("option", { value: number }, name)),
    );
    this.button = make("button", { type: "submit" }, "Search");
    const form = make(
      "form",
      // For its action see index.html.
      {
        class: "search-form",
        action: "/search",
        role: "search",
        "aria-label": "Texts and tokens",
        onsubmit: (event) => this.#submit(event),
      },
      make("label", { for: "search-kind", class: "visually-hidden" }, "Search for"),
      this.kind,
      make("label", { for: "search-for", class: "visually-hidden" }, "Search text"),
      this.words,
      make("label", { for: "search-source", class: "visually-hidden" }, "Source"),
      this.source,
      this.button,
    );
    this.bar = make("progress", { max: 1, value: 0, "aria-label": "Tokens searched", hidden: true });
    this.told = make("p", { class: "told" });
    this.list = make("ol", { class: "matches", "aria-label": "Matches" });
    this.end = make("div", { class: "search-end" });
    this.element = make("div", { class: "page" }, this.heading, form, this.bar, this.told, this.list, this.end);
    this.#tellExample();
    this.#invite();
  }

  show({ text, ids, source = "" }) {
    if (!this.words) return;
    const key = JSON.stringify([text, ids, source]);
    if (text === undefined && ids === undefined) {
      if (this.#asked === null) this.words.focus();
      return;
    }
    if (key === this.#asked) return;
    this.#asked = key;
    this.kind.value = ids === undefined ? "text" : "ids";
    this.words.value = ids ?? text;
    this.source.value = this.names.has(source) ? source : "";
    this.#tellExample();
    this.#start({ text, ids, source });
  }

  hide() {
    if (this.#controller) this.#stop();
  }

  #tellExample() {
    this.words.placeholder = this.kind.value === "text" ? "a word or a sentence" : "ids, such as 464 3290 318";
  }

  #invite() {
    this.list.replaceChildren();
    this.end.replaceChildren(
      nothing(
        "Search all documents.",
        "Texts are found however they were tokenized. The search reads all tokens and shows matches as it finds them.",
      ),
    );
  }

  #submit(event) {
    event.preventDefault();
    if (this.#controller) {
      this.#stop();
      return;
    }
    if (!this.words.value) {
      this.words.focus();
      return;
    }
    this.#asked = null;
    go("search", { [this.kind.value]: this.words.value, source: this.source.value });
  }

  #start(question) {
    this.#controller?.abort();
    this.question = question;
    this.#cursor = null;
    this.#found = 0;
    this.#pause = MOST_AT_ONCE;
    this.list.replaceChildren();
    this.bar.value = 0;
    this.told.textContent = "";
    say("searching");
    this.#scan();
  }

  /** Continues the search until it is complete, has enough matches, or is stopped. */
  async #scan() {
    const controller = (this.#controller = new AbortController());
    this.button.textContent = "Stop";
    this.bar.hidden = false;
    this.end.replaceChildren();
    try {
      do {
        const answer = await ask("search", { ...this.question, cursor: this.#cursor }, controller.signal);
        this.#add(answer);
      } while (this.#cursor !== null && this.#found < this.#pause && this.#controller === controller);
      if (this.#controller === controller) this.#rest();
    } catch (error) {
      if (isAbort(error) || this.#controller !== controller) return;
      this.#end();
      this.end.replaceChildren(failed(error, () => this.#scan()));
    }
  }

  #add({ matches, searched_tokens: searched, total_tokens: total, cursor }) {
    this.#cursor = cursor;
    this.#found += matches.length;
    this.bar.max = Math.max(1, Number(total));
    this.bar.value = Number(searched);
    const share = Number(total) ? (100 * Number(searched)) / Number(total) : 100;
    this.told.textContent = `${counted(this.#found, "match").replace(/chs$/, "ches")} in ${count(searched)} of ${count(total)} tokens (${share > 0 && share < 1 ? share.toFixed(2) : Math.floor(share)} %)`;
    this.list.append(...matches.map((match) => this.#line(match)));
  }

  #line({ source, document, start, length, context_html: context }) {
    const address = route("documents", { source, document, start, length });
    const name = this.names.get(String(source)) ?? "";
    return make(
      "li",
      {},
      make("a", { href: address }, make("bdi", {}, name), ` · document ${count(document)} · token ${count(start)}`),
      drawn(context, { class: "context" }),
    );
  }

  #rest() {
    this.#end();
    if (this.#cursor !== null) {
      this.end.replaceChildren(make("button", { type: "button", onclick: () => this.#more() }, "Continue"));
      say(`${this.told.textContent}; the search is paused`);
    } else {
      this.bar.hidden = true;
      if (this.#found === 0)
        this.end.replaceChildren(nothing("No matches.", "The search is case-sensitive. Try fewer words."));
      say(`${this.told.textContent}; the search is done`);
    }
  }

  #more() {
    this.#pause = this.#found + MOST_AT_ONCE;
    this.#scan();
  }

  #stop() {
    this.#controller.abort();
    this.#end();
    this.end.replaceChildren(make("button", { type: "button", onclick: () => this.#more() }, "Continue"));
    say("the search is stopped");
  }

  #end() {
    this.#controller = null;
    this.button.textContent = "Search";
  }
}
