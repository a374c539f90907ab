// Elements. A text becomes a text node and nothing else; HTML comes from our server alone, which escaped all of it.

const DIGITS = /^-?\d+$/;

/**
 * Makes an element. Attributes that are null or false are left out, true is a name without value, and `onNAME` listens;
 * so do children that are null.
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

/** Makes an element of HTML that the server drew. */
export function drawn(html, attributes = {}) {
  const made = make("div", attributes);
  made.innerHTML = html;
  return made;
}

/** Writes a whole number, given as number or digits, with its thousands apart; nothing for null. */
export function count(number) {
  if (number === null || number === undefined) return "";
  const value = typeof number === "string" && DIGITS.test(number) ? BigInt(number) : number;
  return typeof value === "string" ? value : value.toLocaleString("en");
}

/** Writes a number with its noun: "1 token", "2 tokens". */
export function counted(number, noun) {
  return `${count(number)} ${noun}${String(number) === "1" ? "" : "s"}`;
}

/** The number before or after one that may be longer than JavaScript's are exact. */
export function moved(number, by) {
  return (BigInt(number) + BigInt(by)).toString();
}

/** Names and values as a list; values that are null are left out. */
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

/** A recorded loss per token, in a colour where it is high; nothing where none is known. */
export function lossMark({ loss, loss_level: level }) {
  if (loss === null || loss === undefined) return "";
  const title = ["", "more than 1.5 times the median", "more than 3 times the median"][level];
  return make("span", { class: `loss-level-${level}`, title }, loss);
}

/** The end of a path or address, the part that tells it from others; the whole is told when it is pointed at. */
export function lastPart(path, parts = 1) {
  const short = path.split("/").filter(Boolean).slice(-parts).join("/");
  return make("bdi", { title: short === path ? null : path }, short || path);
}

/** Draws charts into an element, side by side where there is room; what it held stays. */
export function drawCharts(element, charts) {
  const place = charts?.length ? element.appendChild(make("div", { class: "charts" })) : null;
  for (const chart of charts ?? []) tokenloomCharts.draw(place, chart);
  tokenloomCharts.drawAll(element); // and lets keys scroll wide tables
}

/** Says something to who listens to the page rather than looks at it. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
