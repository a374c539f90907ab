// Draws the charts of a page, with uPlot: what a chart says comes from its data, how it looks from style.css.
// See README.md of this folder.
"use strict";

const tokenloomCharts = (() => {
  const { prepared, stacked, thinned, scattered, lowerBound, nearest, limits } = tokenloomChartData;
  const { ticks, short, exact } = tokenloomChartNumbers;
  const NUM_COLOURS = 12;
  const DASHES = [[], [], [], [], [8, 4], [8, 4], [8, 4], [8, 4], [2, 3], [2, 3], [2, 3], [2, 3]];
  const PAPER = { width: 640, factor: 2 }; // CSS pixels across a printed page, and how many of a canvas for each
  const MOST_ROWS = 100;
  const drawnFigures = new Map();
  const paper = matchMedia("print");
  let count = 0;

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

  class Drawn {
    constructor(figure, chart) {
      this.figure = figure;
      this.key = `chart-${++count}`;
      this.hidden = new Set();
      this.plot = null;
      this.at = null;
      this.factor = 1;
      figure.toggleAttribute("data-paper", paper.matches);
      if (paper.matches) this.factor = PAPER.factor;
      this.build();
      this.resizing = new ResizeObserver(() => this.resize());
      this.update(chart);
      this.resizing.observe(this.frame);
      drawnFigures.set(figure, this);
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
        this.frame, this.xLabel, this.keys, this.spoken, this.legend, this.note, this.table,
      );
    }

    // Shows other data in the same place; what a person zoomed into and hid stays.
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

    // The last point, or bar.
    last() {
      return this.data.x.length - (this.chart.kind === "bars" ? 2 : 1);
    }

    destroy() {
      this.resizing.disconnect();
      if (this.plot) this.plot.destroy();
      drawnFigures.delete(this.figure);
      this.figure.remove();
    }

    // The range of x with some room where there is no width; null where there is nothing to draw.
    wholeRange() {
      const { x, series } = this.data;
      if (x.length < (this.chart.kind === "bars" ? 2 : 1) || !limits(series.map((each) => each.values), 0, x.length)) return null;
      let [low, high] = [x[0], x[x.length - 1]];
      if (this.chart.x.scale === "log") return low === high ? [low / 2, high * 2] : [low, high];
      const room = low === high ? Math.abs(low) * 0.1 || 1 : this.chart.kind === "points" ? (high - low) * 0.02 : 0;
      return [low - room, high + room];
    }

    // Draws anew: after a change of data, of colours, of what is hidden, or for paper.
    draw() {
      if (this.plot) this.plot.destroy();
      this.plot = null;
      this.frame.replaceChildren();
      this.frame.classList.toggle("empty", !this.whole);
      if (!this.whole) return void this.frame.append(element("p", {}, "There is nothing to draw."));
      this.ink = inkOf(this.figure, this.data.series);
      this.paintLegend();
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
          drawClear: [(plot) => this.paintGround(plot)], draw: [(plot) => this.paintMarks(plot)],
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

    // What of the data is drawn at this width, of what is in view.
    visible({ width, height }) {
      const { x } = this.data, [low, high] = this.view;
      const placeX = placing(this.chart.x.scale), placeY = placing(this.chart.y.scale);
      const shown = this.columns.filter((_, number) => !this.hidden.has(number));
      if (this.chart.kind === "bars") {
        this.indices = Array.from(x.keys());
      } else if (this.chart.kind === "points") {
        const range = limits(shown, 0, x.length) || [0, 1];
        this.indices = scattered(x, this.columns, low, high, range, width, height, placeX, placeY);
      } else {
        this.indices = thinned(x, this.columns, low, high, width, placeX);
      }
      const pick = (values) => this.indices.map((index) => (Number.isNaN(values[index]) ? null : values[index]));
      return this.inOrder(this.columns.map(pick), pick(x));
    }

    // What there is of each series as uPlot takes it, after x: first what is drawn below, which is the last line or cloud.
    inOrder(each, first) {
      return [first, ...(this.isReversed() ? each.reverse() : each)];
    }

    isReversed() {
      return this.chart.kind === "lines" || this.chart.kind === "points";
    }

    // Puts one series in the foreground; none for null.
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
      const fill = kind === "bars" && this.data.series.length > 1 ? () => colour().veil : () => (kind === "bars" ? colour().area : colour().line);
      const paths = kind === "bars" ? barPaths(k, this.data.series.length > 1) : pointPaths(number, k);
      return { ...options, stroke: () => colour().line, width: kind === "bars" ? 1.5 * k : 0, fill, paths };
    }

    paintGround(plot) {
      plot.ctx.fillStyle = this.ink.ground;
      plot.ctx.fillRect(0, 0, plot.ctx.canvas.width, plot.ctx.canvas.height);
    }

    paintMarks(plot) {
      const k = this.factor * devicePixelRatio, { ctx, bbox } = plot;
      let free = -Infinity;
      ctx.save();
      ctx.font = `${11 * k}px ${this.ink.font}`;
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      for (const mark of this.chart.marks || []) {
        if (mark.x < this.view[0] || mark.x > this.view[1]) continue;
        const left = Math.round(plot.valToPos(mark.x, "x", true));
        ctx.strokeStyle = this.ink.mark;
        ctx.lineWidth = k;
        ctx.setLineDash([4 * k, 3 * k]);
        ctx.beginPath();
        ctx.moveTo(left, bbox.top - 6 * k);
        ctx.lineTo(left, bbox.top + bbox.height);
        ctx.stroke();
        const label = mark.label.length > 24 ? `${mark.label.slice(0, 23)}…` : mark.label;
        const width = ctx.measureText(label).width, start = Math.max(0, Math.min(left + 4 * k, ctx.canvas.width - width));
        if (start < free) continue;
        ctx.fillStyle = this.ink.text;
        ctx.fillText(label, start, bbox.top - 8 * k);
        free = start + width + 10 * k;
      }
      ctx.restore();
    }

    // The values at the cursor, from all of the data.
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
      const place = this.chart.kind === "bars" ? `${exact(x[this.at], "number")} to ${exact(x[this.at + 1], "number")}` : exact(x[this.at], "number");
      return `${this.chart.x.label}: ${place}${unit}${mark ? ` (${mark.label})` : ""}`;
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

    // Where a point, or the middle of a bar, lies: CSS pixels from the left of the plot.
    place(index) {
      const { x } = this.data, left = this.plot.valToPos(x[index], "x");
      return this.chart.kind === "bars" ? (left + this.plot.valToPos(x[index + 1], "x")) / 2 : left;
    }

    // Puts the cursor at a point once uPlot, which works off its changes in a microtask, knows where that is.
    putSoon(index) {
      const { plot } = this;
      queueMicrotask(() => { if (plot && plot === this.plot) this.put(index); });
    }

    // Puts the cursor at a point.
    put(index) {
      this.plot.setCursor({ left: this.place(index), top: 0 });
      this.at = index;
      this.readout.textContent = this.placeText();
      this.values.forEach((cell, number) => { cell.textContent = this.valueText(number); });
    }

    // Says the values at the cursor to those who hear the page.
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

    // Shows a range of x, as far as there is something.
    show(low, high) {
      const { x } = this.data, [least, greatest] = this.whole;
      const least_width = this.chart.x.scale === "log" ? 0 : (greatest - least) * 1e-12;
      if (!(high - low > least_width) || nearest(x, low) === nearest(x, high)) return;
      this.view = [Math.max(low, least) || least, Math.min(high, greatest) || greatest];
      this.all.hidden = this.view[0] <= least && this.view[1] >= greatest;
      this.plot.setData(this.visible(this.size()));
    }

    fillLegend() {
      const { series } = this.data;
      this.swatches = [];
      this.values = [];
      const items = series.map((each, number) => {
        const swatch = shape("svg", { class: "swatch", viewBox: "0 0 20 12", "aria-hidden": "true" });
        const value = element("span", { class: "value" });
        value.style.minWidth = `${this.valueWidth(each)}ch`;
        const button = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(number)), title: each.name },
          swatch, element("bdi", { class: "name" }, each.name), value);
        button.addEventListener("click", () => this.toggle(number, button));
        button.addEventListener("pointerenter", () => this.focus(number));
        button.addEventListener("pointerleave", () => this.focus(null));
        this.swatches.push(swatch);
        this.values.push(value);
        return element("li", {}, button);
      });
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

    // Room for the values of a series, so that nothing moves where they come and go.
    valueWidth(each) {
      const ends = limits([each.values], 0, each.values.length) || [0, 0];
      return Math.max(6, ...ends.map((value) => exact(value, this.chart.y.format).length)) + 1;
    }

    paintLegend() {
      const { kind } = this.chart;
      this.swatches.forEach((swatch, number) => {
        const { line, area } = this.ink.series[number];
        swatch.replaceChildren(
          kind === "lines" ? shape("line", { x1: 0, y1: 6, x2: 20, y2: 6, stroke: line, "stroke-width": 2.5, "stroke-dasharray": dashOf(this.data.series[number], number).join(" ") })
            : kind === "points" ? shape("path", { d: outline(number, 10, 6, 5), fill: line })
              : shape("rect", { x: 1, y: 0.5, width: 18, height: 11, fill: area, stroke: line }));
      });
    }

    toggle(number, button) {
      if (this.hidden.has(number)) this.hidden.delete(number);
      else this.hidden.add(number);
      button.setAttribute("aria-pressed", String(!this.hidden.has(number)));
      this.draw();
    }

    // The data as a table, of rows that are spread evenly over them; made once somebody looks.
    fillTable() {
      const before = this.table.querySelector(".scrolled"), scrolled = before ? [before.scrollLeft, before.scrollTop] : [0, 0];
      before?.remove();
      if (!this.table.open || !this.whole) return;
      const { x, series } = this.data, bars = this.chart.kind === "bars", length = x.length - (bars ? 1 : 0);
      const rows = Math.min(length, MOST_ROWS);
      const head = element("tr", {}, ...[this.chart.x.label, ...series.map((each) => each.name)].map((name) => element("th", { scope: "col" }, element("bdi", {}, name))));
      const body = Array.from({ length: rows }, (_, row) => {
        const index = rows === 1 ? 0 : Math.round((row * (length - 1)) / (rows - 1));
        const place = bars ? `${exact(x[index], "number")} to ${exact(x[index + 1], "number")}` : exact(x[index], "number");
        return element("tr", {}, element("th", { scope: "row" }, place),
          ...series.map((each) => element("td", { class: "number" }, exact(each.values[index], this.chart.y.format))));
      });
      const caption = rows < length ? `${this.chart.title}: ${rows} of ${exact(length, "count")} rows` : this.chart.title;
      const made = element("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": caption },
        element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body)));
      this.table.append(made);
      [made.scrollLeft, made.scrollTop] = scrolled;
    }

    // On paper: light, as wide as a page, and with more points than a screen has.
    print(isPaper) {
      const factor = isPaper ? PAPER.factor : 1;
      if (factor === this.factor) return;
      this.factor = factor;
      this.figure.toggleAttribute("data-paper", isPaper);
      this.draw();
    }
  }

  function dashOf(each, number) {
    return each.others ? [] : DASHES[number];
  }

  function placing(scale) {
    return scale === "log" ? Math.log : (value) => value;
  }

  function widest(plot, values, font) {
    const { ctx } = plot;
    ctx.save();
    ctx.font = font;
    const width = Math.max(0, ...(values || []).map((text) => ctx.measureText(text || "").width));
    ctx.restore();
    return Math.ceil(width);
  }

  // Powers of ten, with what is between them where there is room.
  function logarithmicTicks(low, high, most) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), found = [];
    const decades = Math.max(1, Math.log10(high / low));
    const steps = decades * 9 <= most ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : decades * 3 <= most ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / most));
    for (let power = first; power <= last; power += 1) {
      if (steps.length === 1 && power % every !== 0) continue;
      for (const step of steps) {
        const value = step * 10 ** power;
        if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) found.push(value);
      }
    }
    return found;
  }

  function barPaths(k, several) {
    return (plot, number, first, last) => {
      const fill = new Path2D(), stroke = new Path2D(), x = plot.data[0], y = plot.data[number];
      const bottom = plot.bbox.top + plot.bbox.height, zero = plot.scales.y.distr === 3 ? bottom : Math.min(bottom, plot.valToPos(0, "y", true));
      let column = null, top = zero;
      const flush = () => {
        if (column === null || top === zero) return;
        const gap = !several && column[1] - column[0] > 4 * k ? k * devicePixelRatio : 0;
        const box = [column[0] + gap / 2, Math.min(top, zero), Math.max(column[1] - column[0] - gap, 1), Math.abs(zero - top)];
        fill.rect(...box);
        if (several) stroke.rect(...box);
      };
      for (let i = Math.max(0, first - 1); i < Math.min(last + 1, x.length - 1); i++) {
        const left = plot.valToPos(x[i], "x", true), right = plot.valToPos(x[i + 1], "x", true);
        const height = y[i] === null ? zero : plot.valToPos(y[i], "y", true);
        if (column !== null && right - column[0] < 1) { // several bars in one pixel: the highest is seen
          column[1] = right;
          top = Math.min(top, height);
          continue;
        }
        flush();
        column = [left, right];
        top = height;
      }
      flush();
      const clip = new Path2D();
      clip.rect(plot.bbox.left, plot.bbox.top - 2 * k, plot.bbox.width, plot.bbox.height + 2 * k);
      return { fill, stroke, clip, band: null, gaps: null, flags: 3 };
    };
  }

  function pointPaths(number, k) {
    return (plot, index, first, last) => {
      const fill = new Path2D(), x = plot.data[0], y = plot.data[index], size = 3.2 * k * devicePixelRatio;
      for (let i = first; i <= last; i++) {
        if (y[i] === null || y[i] === undefined) continue;
        fill.addPath(new Path2D(outline(number, plot.valToPos(x[i], "x", true), plot.valToPos(y[i], "y", true), size)));
      }
      return { fill, stroke: null, clip: null, band: null, gaps: null, flags: 3 };
    };
  }

  // Circle, square, triangle, diamond: series are told apart by more than colour.
  function outline(number, x, y, size) {
    const s = size * 0.9;
    const shapes = [
      `M${x - s},${y}a${s},${s} 0 1,0 ${2 * s},0a${s},${s} 0 1,0 ${-2 * s},0z`,
      `M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
      `M${x},${y - size}l${size},${1.8 * size}h${-2 * size}z`,
      `M${x},${y - 1.2 * size}l${1.2 * size},${1.2 * size}l${-1.2 * size},${1.2 * size}l${-1.2 * size},${-1.2 * size}z`,
    ];
    return shapes[number % shapes.length];
  }

  // The colours of a figure, as they are right now; lines in them stand out from the ground.
  function inkOf(figure, series) {
    const style = getComputedStyle(figure), of = (name) => style.getPropertyValue(name).trim();
    const ground = of("--ground");
    const colours = series.map((each, number) => {
      const base = of(each.others || number >= NUM_COLOURS ? "--series-other" : `--series-${number + 1}`);
      return { area: base, line: readable(base, ground), veil: `${base}66` };
    });
    return { ground, series: colours, text: of("--text-soft"), grid: of("--grid"), axis: of("--axis"), mark: of("--axis"), font: style.fontFamily };
  }

  // A colour moved towards black or white until it has three times the contrast of the ground.
  function readable(colour, ground) {
    const back = channels(ground), towards = luminance(back) > 0.5 ? 0 : 255;
    let own = channels(colour);
    for (let i = 0; i < 30 && contrast(own, back) < 3; i++) own = own.map((value) => value + (towards - value) * 0.08);
    return `#${own.map((value) => Math.round(value).toString(16).padStart(2, "0")).join("")}`;
  }

  function channels(colour) {
    return [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  }

  function luminance(rgb) {
    const [red, green, blue] = rgb.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  function contrast(one, other) {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }

  // Appends a chart to an element.
  function draw(parent, chart) {
    const figure = element("figure", { class: "chart" });
    parent.append(figure);
    return new Drawn(figure, chart);
  }

  // Lets keys scroll the tables that are wider than their place.
  function reachTables() {
    for (const table of document.querySelectorAll("main table")) {
      const isWide = table.scrollWidth > table.clientWidth && getComputedStyle(table).overflowX === "auto";
      if (isWide) table.setAttribute("tabindex", "0");
      else if (table.getAttribute("tabindex") === "0") table.removeAttribute("tabindex");
    }
  }

  // Draws the figures that hold data and are not drawn.
  function drawAll(root = document) {
    for (const figure of root.querySelectorAll("figure.chart")) {
      const data = figure.querySelector(":scope > script[type='application/json']");
      if (data) new Drawn(figure, JSON.parse(data.textContent));
    }
  }

  const eachDrawn = (work) => [...drawnFigures.values()].forEach(work);
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
