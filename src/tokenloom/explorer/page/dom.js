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
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
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
  return make("dl", { class: "fact-list" }, known.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("bdi", {}, typeof value === "number" ? count(value) : String(value)))),
  ));
}

/** Says something to who listens to the page rather than looks at it. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
