// Draws the charts of a page, and redraws them for the colour scheme and for printing.
// See README.md of this folder.
"use strict";

const tokenloomCharts = (() => {
  const drawnFigures = new Map();
  const paper = matchMedia("print");

  function drawnIn(figure, chart) {
    const drawn = new TokenloomChart(figure, chart, { isPaper: paper.matches });
    drawnFigures.set(figure, drawn);
    return drawn;
  }

  // Appends a chart to an element.
  function draw(parent, chart) {
    const figure = tokenloomChartWords.element("figure", { class: "chart" });
    parent.append(figure);
    return drawnIn(figure, chart);
  }

  // Makes tables that are wider than their container scrollable by keys.
  function reachTables() {
    for (const table of document.querySelectorAll("main table")) {
      const isWide = table.scrollWidth > table.clientWidth && getComputedStyle(table).overflowX === "auto";
      if (isWide) table.setAttribute("tabindex", "0");
      else if (table.getAttribute("tabindex") === "0") table.removeAttribute("tabindex");
    }
  }

  // Draws the figures that contain data and are not drawn yet.
  function drawAll(root = document) {
    for (const figure of root.querySelectorAll("figure.chart")) {
      const data = figure.querySelector(":scope > script[type='application/json']");
      if (data) drawnIn(figure, JSON.parse(data.textContent));
    }
  }

  // Calls a function with every chart that is still on the page.
  function eachDrawn(work) {
    for (const [figure, drawn] of drawnFigures) {
      if (figure.isConnected) work(drawn);
      else drawnFigures.delete(figure);
    }
  }

  paper.addEventListener("change", () => eachDrawn((drawn) => drawn.print(paper.matches)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => eachDrawn((drawn) => drawn.draw()));
  addEventListener("beforeprint", () => eachDrawn((drawn) => drawn.print(true)));
  addEventListener("afterprint", () => eachDrawn((drawn) => drawn.print(false)));
  let isDue = false;
  const reachSoon = () => {
    if (!isDue) requestAnimationFrame(() => { isDue = false; reachTables(); });
    isDue = true;
  };
  addEventListener("resize", reachSoon);
  new MutationObserver(reachSoon).observe(document.documentElement, { childList: true, subtree: true });
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", () => drawAll());
  else drawAll();

  return { draw, drawAll, of: (figure) => drawnFigures.get(figure) };
})();
