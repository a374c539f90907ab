// Builds elements. Texts become text nodes; only HTML from our server, which escapes it, is inserted as HTML.

const DIGITS = /^-?\d+$/;

/**
 * Makes an element. Attributes that are null or false and children that are null are skipped; true adds an attribute
 * without value, and `onNAME` adds an event listener.
 */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

/** Makes an element of HTML from the server. */
export function drawn(html, attributes = {}) {
  const made = make("div", attributes);
  made.innerHTML = html;
  return made;
}

/** Formats an integer, given as number or digits, with thousands separators; "" for null. */
export function count(number) {
  if (number === null || number === undefined) return "";
  const value = typeof number === "string" && DIGITS.test(number) ? BigInt(number) : number;
  return typeof value === "string" ? value : value.toLocaleString("en");
}

/** Formats a number with its noun: "1 token", "2 tokens". */
export function counted(number, noun) {
  return `${count(number)} ${noun}${String(number) === "1" ? "" : "s"}`;
}

/** Adds `by` to an integer that may exceed 2^53. */
export function moved(number, by) {
  return (BigInt(number) + BigInt(by)).toString();
}

/** Returns names and values as a list; null and empty values are skipped. */
export function factList(facts) {
  const known = (facts ?? []).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make(
    "dl",
    { class: "fact-list" },
    known.map(([name, value]) =>
      make(
        "div",
        {},
        make("dt", {}, name),
        make("dd", {}, make("bdi", {}, typeof value === "number" ? count(value) : String(value))),
      ),
    ),
  );
}

/** Returns a recorded loss per token, coloured if it is high; "" if there is none. */
export function lossMark({ loss, loss_level: level }) {
  if (loss === null || loss === undefined) return "";
  const title = ["", "more than 1.5 times the median", "more than 3 times the median"][level];
  return make("span", { class: `loss-level-${level}`, title }, loss);
}

/** Returns the last parts of a path; the whole path is its tooltip. */
export function lastPart(path, parts = 1) {
  const short = path.split("/").filter(Boolean).slice(-parts).join("/");
  return make("bdi", { title: short === path ? null : path }, short || path);
}

/** Appends charts to an element, side by side if there is room. */
export function drawCharts(element, charts) {
  const place = charts?.length ? element.appendChild(make("div", { class: "charts" })) : null;
  for (const chart of charts ?? []) tokenloomCharts.draw(place, chart);
  tokenloomCharts.drawAll(element); // makes wide tables scrollable by keys
}

/** Announces a text to screen readers. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
