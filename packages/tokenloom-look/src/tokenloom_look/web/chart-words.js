// The legend and the table of a chart, built from elements and text nodes, never from HTML.
// See README.md of this folder.
"use strict";

const tokenloomChartWords = (() => {
  const { limits } = tokenloomChartData;
  const { exact } = tokenloomChartNumbers;
  const { dashOf } = tokenloomChartInk;
  const MOST_ROWS = 100;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function shape(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  // The x value of a point, or the range of a bar.
  function placeText(chart, x, index) {
    const text = exact(x[index], "number");
    return chart.kind === "bars" ? `${text} to ${exact(x[index + 1], "number")}` : text;
  }

  // A legend row per series: swatch, name, and the value at the cursor.
  function legendRows(chart, series, hidden) {
    return series.map((each, number) => {
      const swatch = shape("svg", { class: "swatch", viewBox: "0 0 20 12", "aria-hidden": "true" });
      const value = element("span", { class: "value" });
      value.style.minWidth = `${valueWidth(chart, each)}ch`;
      const button = element("button", { type: "button", "aria-pressed": String(!hidden.has(number)), title: each.name },
        swatch, element("bdi", { class: "name" }, each.name), value);
      return { swatch, value, button, item: element("li", {}, button) };
    });
  }

  // Width of the longest value, reserved so that the legend does not move.
  function valueWidth(chart, each) {
    const ends = limits([each.values], 0, each.values.length) || [0, 0];
    return Math.max(6, ...ends.map((value) => exact(value, chart.y.format).length)) + 1;
  }

  function paintSwatch(swatch, kind, each, number, { line, area }) {
    const painted = kind === "lines"
      ? shape("line", { x1: 0, y1: 6, x2: 20, y2: 6, stroke: line, "stroke-width": 2.5, "stroke-dasharray": dashOf(each, number).join(" ") })
      : shape("rect", { x: 1, y: 0.5, width: 18, height: 11, fill: area, stroke: line });
    swatch.replaceChildren(painted);
  }

  // A table of the data, thinned evenly.
  function tableOf(chart, { x, series }) {
    const length = x.length - (chart.kind === "bars" ? 1 : 0), rows = Math.min(length, MOST_ROWS);
    const names = [chart.x.label, ...series.map((each) => each.name)];
    const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, element("bdi", {}, name))));
    const body = Array.from({ length: rows }, (_, row) => {
      const index = rows === 1 ? 0 : Math.round((row * (length - 1)) / (rows - 1));
      return element("tr", {}, element("th", { scope: "row" }, placeText(chart, x, index)),
        ...series.map((each) => element("td", { class: "number" }, exact(each.values[index], chart.y.format))));
    });
    const caption = rows < length ? `${chart.title}: ${rows} of ${exact(length, "count")} rows` : chart.title;
    return element("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": caption },
      element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body)));
  }

  return { element, placeText, legendRows, paintSwatch, tableOf };
})();
