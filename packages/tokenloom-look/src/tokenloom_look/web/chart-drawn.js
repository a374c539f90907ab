// Draws a chart into its figure with uPlot, with a cursor, zoom, and series that can be hidden; style.css has the colours.
// See README.md of this folder.
"use strict";

const TokenloomChart = (() => {
  const { prepared, stacked, thinned, placing, lowerBound, nearest, limits } = tokenloomChartData;
  const { ticks, exact } = tokenloomChartNumbers;
  const { NUM_COLOURS, dashOf, widest, logarithmicTicks, barPaths, paintMarks, inkOf } = tokenloomChartInk;
  const { element, placeText, legendRows, paintSwatch, tableOf } = tokenloomChartWords;
  const PAPER = { width: 640, factor: 2 }; // width of a printed page in CSS pixels, and canvas pixels per CSS pixel
  let count = 0;

  class Drawn {
    constructor(figure, chart, { isPaper = false } = {}) {
      this.figure = figure;
      this.key = `chart-${++count}`;
      this.hidden = new Set();
      this.plot = null;
      this.at = null;
      this.factor = isPaper ? PAPER.factor : 1;
      figure.toggleAttribute("data-paper", isPaper);
      this.build();
      this.resizing = new ResizeObserver(() => this.resize());
      this.update(chart);
      this.resizing.observe(this.frame);
    }

    build() {
      this.title = element("div", { class: "chart-title", id: `${this.key}-title` });
      this.summary = element("p", { class: "chart-summary", id: `${this.key}-summary` });
      this.yLabel = element("div", { class: "chart-y-label" });
      this.xLabel = element("div", { class: "chart-x-label" });
      this.readout = element("div", { class: "chart-readout", "aria-hidden": "true" });
      this.all = element("button", { type: "button", class: "chart-all", hidden: "" }, "Show all");
      this.all.addEventListener("click", () => { this.show(...this.whole); this.frame.focus(); });
      this.frame = element("div", {
        class: "chart-plot", tabindex: "0", role: "application", "aria-roledescription": "chart",
        "aria-labelledby": `${this.key}-title`, "aria-describedby": `${this.key}-summary ${this.key}-keys`,
      });
      this.frame.addEventListener("keydown", (event) => this.press(event));
      this.frame.addEventListener("blur", () => this.leave());
      this.keys = element("p", { class: "chart-keys", id: `${this.key}-keys` },
        "Arrow keys read values, + and − zoom, 0 shows all.");
      this.spoken = element("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
      this.legend = element("ul", { class: "chart-legend", "aria-label": "Series" });
      this.note = element("p", { class: "note" });
      this.table = element("details", { class: "chart-table" }, element("summary", {}, "Show as table"));
      this.table.addEventListener("toggle", () => this.fillTable());
      this.figure.replaceChildren(
        element("figcaption", {}, this.title, this.summary),
        element("div", { class: "chart-head" }, this.yLabel, this.readout, this.all),
        element("div", {}, this.frame, this.xLabel, this.keys, this.spoken, this.legend, this.note, this.table),
      );
    }

    // Shows other data in the same place; keeps zoom and hidden series.
    update(chart) {
      const names = this.chart ? this.data.series.map((each) => each.name) : null;
      const hidden = new Set([...this.hidden].map((number) => names[number]));
      const place = this.at === null ? null : this.data.x[this.at];
      const wasWhole = !this.whole || (this.view[0] === this.whole[0] && this.view[1] === this.whole[1]);
      this.chart = chart;
      this.data = prepared(chart);
      this.title.textContent = chart.title;
      this.summary.textContent = chart.summary || "";
      this.yLabel.textContent = chart.y.label;
      this.xLabel.textContent = chart.x.label;
      this.hidden = new Set([...this.data.series.keys()].filter((number) => hidden.has(this.data.series[number].name)));
      this.whole = this.wholeRange();
      if (wasWhole || !this.whole || this.view[1] <= this.whole[0] || this.view[0] >= this.whole[1]) this.view = this.whole;
      this.fillNote();
      const isSame = names !== null && this.data.series.length === names.length && this.data.series.every((each, number) => each.name === names[number]);
      if (!isSame) this.fillLegend();
      for (const part of [this.legend, this.table, this.yLabel, this.xLabel]) part.hidden = !this.whole;
      this.all.hidden = !this.whole || (this.view[0] <= this.whole[0] && this.view[1] >= this.whole[1]);
      this.at = null;
      this.draw();
      this.fillTable();
      if (place !== null && this.whole) this.putSoon(Math.min(nearest(this.data.x, place), this.last()));
    }

    // The index of the last point or bar.
    last() {
      return this.data.x.length - (this.chart.kind === "bars" ? 2 : 1);
    }

    destroy() {
      this.resizing.disconnect();
      if (this.plot) this.plot.destroy();
      this.figure.remove();
    }

    // The range of x, widened if it is a single value; null if there is nothing to draw.
    wholeRange() {
      const { x, series } = this.data;
      if (x.length < (this.chart.kind === "bars" ? 2 : 1) || !limits(series.map((each) => each.values), 0, x.length)) return null;
      let [low, high] = [x[0], x[x.length - 1]];
      if (this.chart.x.scale === "log") return low === high ? [low / 2, high * 2] : [low, high];
      const room = low === high ? Math.abs(low) * 0.1 || 1 : 0;
      return [low - room, high + room];
    }

    // Redraws the chart after a change of data, colours or hidden series, or for print.
    draw() {
      if (this.plot) this.plot.destroy();
      this.plot = null;
      this.frame.replaceChildren();
      this.frame.classList.toggle("empty", !this.whole);
      if (!this.whole) return void this.frame.append(element("p", {}, "There is nothing to draw."));
      this.ink = inkOf(this.figure, this.data.series);
      this.swatches.forEach((swatch, number) => paintSwatch(swatch, this.chart.kind, this.data.series[number], number, this.ink.series[number]));
      const { kind } = this.chart;
      this.columns = kind === "stacked" ? stacked(this.data.series, this.hidden) : this.data.series.map((each) => each.values);
      const k = this.factor, size = this.size();
      this.plot = new uPlot({
        ...size,
        padding: [(this.chart.marks?.length ? 22 : 8) * k, 22 * k, 0, 0],
        legend: { show: false },
        cursor: {
          y: false, points: { show: false }, drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => (this.show(...this.whole), null) },
        },
        focus: { alpha: 0.25 },
        scales: {
          x: { time: false, distr: this.chart.x.scale === "log" ? 3 : 1, range: () => this.view },
          y: { distr: this.chart.y.scale === "log" ? 3 : 1, range: (_, low, high) => this.yRange(low, high) },
        },
        axes: [this.axis(0), this.axis(1)],
        series: this.inOrder(this.data.series.map((each, number) => this.seriesOptions(each, number)), {}),
        bands: kind === "stacked" ? this.columns.slice(1).map((_, number) => ({ series: [number + 2, number + 1] })) : [],
        hooks: {
          drawClear: [(plot) => this.paintGround(plot)], draw: [(plot) => paintMarks(plot, this.chart.marks || [], this.view, this.ink, this.factor * devicePixelRatio)],
          setCursor: [(plot) => this.read(plot)], setSelect: [(plot) => this.select(plot)],
        },
      }, this.visible(size), this.frame);
      this.plot.root.setAttribute("aria-hidden", "true");
    }

    size() {
      const width = this.factor === 1 ? this.frame.clientWidth || 600 : PAPER.width * this.factor;
      const height = (this.factor === 1 && width < 560 ? 230 : 290) * (this.factor === 1 ? 1 : this.factor * 0.85);
      return { width, height };
    }

    resize() {
      if (!this.plot || this.factor !== 1 || this.frame.clientWidth === 0) return;
      const size = this.size();
      if (size.width === this.plot.width && size.height === this.plot.height) return;
      this.plot.setSize(size);
      this.plot.setData(this.visible(size));
    }

    // The points to draw of the visible range, at this width.
    visible({ width }) {
      const { x } = this.data, [low, high] = this.view, placeX = placing(this.chart.x.scale);
      if (this.chart.kind === "bars") {
        this.indices = Array.from(x.keys());
      } else {
        this.indices = thinned(x, this.columns, low, high, width, placeX);
      }
      const pick = (values) => this.indices.map((index) => (Number.isNaN(values[index]) ? null : values[index]));
      return this.inOrder(this.columns.map(pick), pick(x));
    }

    // The series for uPlot, after x: the last line first, since it is drawn below the others.
    inOrder(each, first) {
      return [first, ...(this.isReversed() ? each.reverse() : each)];
    }

    isReversed() {
      return this.chart.kind === "lines";
    }

    // Highlights one series; null for none.
    focus(number) {
      if (this.plot) this.plot.setSeries(number === null ? null : this.isReversed() ? this.columns.length - number : number + 1, { focus: true });
    }

    yRange(low, high) {
      const { scale, format } = this.chart.y;
      if (low === null || high === null || low === undefined) return scale === "log" ? [1, 10] : [0, 1];
      if (scale === "log") return this.chart.kind === "bars" ? [low / 2, high * 1.5] : low === high ? [low / 2, high * 2] : [low / 1.2, high * 1.2];
      if (this.chart.kind === "stacked") return [0, format === "share" && high <= 1.001 ? 1 : high * 1.02 || 1];
      if (format !== "number" || this.chart.kind === "bars") [low, high] = [Math.min(low, 0), Math.max(high, 0)];
      const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      return [low === 0 ? 0 : low - room, high === 0 && low < 0 ? 0 : high + room];
    }

    axis(which) {
      const k = this.factor, scale = which === 0 ? this.chart.x : this.chart.y, logarithmic = scale.scale === "log";
      const format = which === 0 ? "count" : scale.format;
      const font = `${12 * k}px ${this.ink.font}`;
      const axis = {
        font, stroke: () => this.ink.text, gap: 5 * k, space: (which === 0 ? 70 : 40) * k,
        grid: { show: which === 1, stroke: () => this.ink.grid, width: k },
        ticks: { show: which === 0, stroke: () => this.ink.axis, width: k, size: 5 * k },
        border: { show: which === 0, stroke: () => this.ink.axis, width: k },
        values: (_, splits) => ticks(splits, format, logarithmic),
        size: which === 0 ? 30 * k : (plot, values) => widest(plot, values, font) + 12 * k,
      };
      if (logarithmic) {
        axis.splits = (plot, _, low, high) => logarithmicTicks(low, high, (which === 0 ? plot.width / 70 : plot.height / 40) / k);
        axis.filter = (_, splits) => splits;
      }
      return axis;
    }

    seriesOptions(each, number) {
      const k = this.factor, { kind } = this.chart, colour = () => this.ink.series[number];
      const options = { show: kind === "stacked" || !this.hidden.has(number), points: { show: false }, spanGaps: false };
      if (kind === "lines") {
        const alone = (plot, _, first, last) => last - first < 60;
        const width = (each.others ? 1 : 2) * k;
        return { ...options, stroke: () => colour().line + (each.others ? "99" : ""), width, dash: dashOf(each, number).map((length) => length * k),
          points: { show: alone, size: 5 * k, fill: () => colour().line, stroke: () => colour().line } };
      }
      if (kind === "stacked") return { ...options, stroke: () => this.ink.ground, width: k, fill: () => colour().area };
      const several = this.data.series.length > 1, fill = () => (several ? colour().veil : colour().area);
      return { ...options, stroke: () => colour().line, width: 1.5 * k, fill, paths: barPaths(k, several) };
    }

    paintGround(plot) {
      plot.ctx.fillStyle = this.ink.ground;
      plot.ctx.fillRect(0, 0, plot.ctx.canvas.width, plot.ctx.canvas.height);
    }

    // The values at the cursor, from all points.
    read(plot) {
      const { left } = plot.cursor, { x } = this.data;
      const isThere = left !== undefined && left >= 0 && this.whole;
      const value = isThere ? plot.posToVal(left, "x") : null;
      this.at = !isThere ? null : this.chart.kind === "bars"
        ? Math.max(0, Math.min(lowerBound(x, value, true) - 1, x.length - 2)) : nearest(x, value);
      this.readout.textContent = this.at === null ? "" : this.placeText();
      this.values.forEach((cell, number) => {
        cell.textContent = this.at === null ? "" : this.valueText(number);
      });
    }

    placeText() {
      const { x } = this.data, unit = this.chart.x.unit ? ` ${this.chart.x.unit}` : "", mark = this.markBefore(x[this.at]);
      return `${this.chart.x.label}: ${placeText(this.chart, x, this.at)}${unit}${mark ? ` (${mark.label})` : ""}`;
    }

    valueText(number) {
      return exact(this.data.series[number].values[this.at], this.chart.y.format);
    }

    markBefore(value) {
      return [...(this.chart.marks || [])].filter((mark) => mark.x <= value).sort((a, b) => a.x - b.x).at(-1);
    }

    press(event) {
      if (!this.plot || event.ctrlKey || event.metaKey || event.altKey || event.target !== this.frame) return;
      const { plot } = this, { x } = this.data, [low, high] = this.view;
      const first = lowerBound(x, low), last = Math.min(lowerBound(x, high, true) - 1, this.last());
      const here = this.at === null ? null : this.place(this.at);
      const jump = (pixels) => nearest(x, plot.posToVal(Math.max(0, Math.min(here + pixels, plot.over.clientWidth)), "x"));
      const moves = {
        ArrowRight: () => Math.max(this.at + 1, lowerBound(x, plot.posToVal(here + 1, "x"))),
        ArrowLeft: () => Math.min(this.at - 1, lowerBound(x, plot.posToVal(here - 1, "x"), true) - 1),
        PageDown: () => Math.max(this.at + 1, jump(plot.over.clientWidth / 10)), PageUp: () => Math.min(this.at - 1, jump(-plot.over.clientWidth / 10)),
        Home: () => first, End: () => last,
      };
      const zooms = { "+": 0.5, "=": 0.5, "-": 2, "_": 2, "0": Infinity };
      if (event.key in zooms) this.zoom(zooms[event.key]);
      else if (event.key === "Escape") this.leave();
      else if (event.key in moves) {
        const aim = here === null && event.key.startsWith("Arrow") ? (event.key === "ArrowRight" ? first : last) : here === null ? first : moves[event.key]();
        this.put(Math.max(first, Math.min(aim, last)));
        this.speak();
      } else return;
      event.preventDefault();
    }

    // The position of a point, or the middle of a bar, in CSS pixels from the left of the plot.
    place(index) {
      const { x } = this.data, left = this.plot.valToPos(x[index], "x");
      return this.chart.kind === "bars" ? (left + this.plot.valToPos(x[index + 1], "x")) / 2 : left;
    }

    // Moves the cursor to a point after uPlot's pending changes, which it applies in a microtask.
    putSoon(index) {
      const { plot } = this;
      queueMicrotask(() => { if (plot && plot === this.plot) this.put(index); });
    }

    // Moves the cursor to a point.
    put(index) {
      this.plot.setCursor({ left: this.place(index), top: 0 });
      this.at = index;
      this.readout.textContent = this.placeText();
      this.values.forEach((cell, number) => { cell.textContent = this.valueText(number); });
    }

    // Announces the values at the cursor to screen readers.
    speak() {
      const values = this.data.series.map((each, number) => `${each.name}: ${this.valueText(number)}`);
      const shown = values.filter((_, number) => !this.hidden.has(number)).slice(0, NUM_COLOURS);
      this.spoken.textContent = [this.placeText(), ...shown].join("; ");
    }

    leave() {
      if (!this.plot || this.at === null) return;
      this.plot.setCursor({ left: -10, top: -10 });
      this.spoken.textContent = "";
    }

    zoom(by) {
      const place = placing(this.chart.x.scale), back = this.chart.x.scale === "log" ? Math.exp : (value) => value;
      const [low, high] = this.view.map(place), middle = this.at === null ? (low + high) / 2 : place(this.data.x[this.at]);
      const at = this.at;
      this.show(back(middle - ((middle - low) * by || 0)), back(middle + ((high - middle) * by || 0)));
      if (at !== null) this.putSoon(at);
    }

    select(plot) {
      const { left, width } = plot.select;
      if (width < 4) return;
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.show(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    }

    // Shows a range of x, clipped to the data.
    show(low, high) {
      const { x } = this.data, [least, greatest] = this.whole;
      const least_width = this.chart.x.scale === "log" ? 0 : (greatest - least) * 1e-12;
      if (!(high - low > least_width) || nearest(x, low) === nearest(x, high)) return;
      this.view = [Math.max(low, least) || least, Math.min(high, greatest) || greatest];
      this.all.hidden = this.view[0] <= least && this.view[1] >= greatest;
      this.plot.setData(this.visible(this.size()));
    }

    fillLegend() {
      const rows = legendRows(this.chart, this.data.series, this.hidden);
      this.swatches = rows.map((row) => row.swatch);
      this.values = rows.map((row) => row.value);
      rows.forEach(({ button }, number) => {
        button.addEventListener("click", () => this.toggle(number, button));
        button.addEventListener("pointerenter", () => this.focus(number));
        button.addEventListener("pointerleave", () => this.focus(null));
      });
      const items = rows.map((row) => row.item);
      if (this.chart.kind === "stacked") items.reverse(); // as they lie on top of each other
      this.legend.replaceChildren(...items);
      this.legend.classList.toggle("many", items.length > 3);
      if (items.length > 2 * NUM_COLOURS) this.legend.setAttribute("tabindex", "0");
      else this.legend.removeAttribute("tabindex");
    }

    fillNote() {
      const others = this.data.series.filter((each) => each.others).length;
      const alike = others > 1 ? ` ${others} series are drawn alike, in grey.` : "";
      this.note.textContent = `${this.chart.note || ""}${alike}`.trim();
      this.note.hidden = this.note.textContent === "";
    }

    toggle(number, button) {
      if (this.hidden.has(number)) this.hidden.delete(number);
      else this.hidden.add(number);
      button.setAttribute("aria-pressed", String(!this.hidden.has(number)));
      this.draw();
    }

    // The data as a table, thinned evenly; created when it is opened.
    fillTable() {
      const before = this.table.querySelector(".scrolled"), scrolled = before ? [before.scrollLeft, before.scrollTop] : [0, 0];
      before?.remove();
      if (!this.table.open || !this.whole) return;
      const made = tableOf(this.chart, this.data);
      this.table.append(made);
      [made.scrollLeft, made.scrollTop] = scrolled;
    }

    // For print: light colours, the width of a page, and more points than on a screen.
    print(isPaper) {
      const factor = isPaper ? PAPER.factor : 1;
      if (factor === this.factor) return;
      this.factor = factor;
      this.figure.toggleAttribute("data-paper", isPaper);
      this.draw();
    }
  }

  return Drawn;
})();
