// Painting of charts: colours with enough contrast, dashes, bars, logarithmic ticks.
// See README.md of this folder.
"use strict";

const tokenloomChartInk = (() => {
  const NUM_COLOURS = 12;
  const DASHES = [[], [], [], [], [8, 4], [8, 4], [8, 4], [8, 4], [2, 3], [2, 3], [2, 3], [2, 3]];

  function dashOf(each, number) {
    return each.others ? [] : DASHES[each.colour ?? number];
  }

  function widest(plot, values, font) {
    const { ctx } = plot;
    ctx.save();
    ctx.font = font;
    const width = Math.max(0, ...(values || []).map((text) => ctx.measureText(text || "").width));
    ctx.restore();
    return Math.ceil(width);
  }

  // Powers of ten, with values in between if there is room; powers of two (256, 512) for less than two powers of ten.
  function logarithmicTicks(low, high, most) {
    if (high < 100 * low && Math.log2(high / low) >= 2) {
      const first = Math.ceil(Math.log2(low) - 1e-9), last = Math.floor(Math.log2(high) + 1e-9);
      const twos = Array.from({ length: last - first + 1 }, (_, i) => 2 ** (first + i));
      if (twos.length <= most) return twos;
    }
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
        if (column !== null && right - column[0] < 1) { // several bars in one pixel: draw the highest
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

  // Vertical lines with labels that do not overlap; `k` is the number of canvas pixels per CSS pixel.
  function paintMarks(plot, marks, view, ink, k) {
    const { ctx, bbox } = plot;
    let free = -Infinity;
    ctx.save();
    ctx.font = `${11 * k}px ${ink.font}`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    for (const mark of marks) {
      if (mark.x < view[0] || mark.x > view[1]) continue;
      const left = Math.round(plot.valToPos(mark.x, "x", true));
      ctx.strokeStyle = ink.mark;
      ctx.lineWidth = k;
      ctx.setLineDash([4 * k, 3 * k]);
      ctx.beginPath();
      ctx.moveTo(left, bbox.top - 6 * k);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
      const label = mark.label.length > 24 ? `${mark.label.slice(0, 23)}…` : mark.label;
      const width = ctx.measureText(label).width, start = Math.max(0, Math.min(left + 4 * k, ctx.canvas.width - width));
      if (start < free) continue;
      ctx.fillStyle = ink.text;
      ctx.fillText(label, start, bbox.top - 8 * k);
      free = start + width + 10 * k;
    }
    ctx.restore();
  }

  // The current colours of a figure; those of lines have enough contrast with the background.
  function inkOf(figure, series) {
    const style = getComputedStyle(figure), of = (name) => style.getPropertyValue(name).trim();
    const ground = of("--ground");
    const colours = series.map((each, number) => {
      const place = each.colour ?? number;
      const base = of(each.others || place >= NUM_COLOURS ? "--series-other" : `--series-${place + 1}`);
      return { area: base, line: readable(base, ground), veil: `${base}66` };
    });
    return { ground, series: colours, text: of("--text-soft"), grid: of("--grid"), axis: of("--axis"), mark: of("--axis"), font: style.fontFamily };
  }

  // Darkens or lightens a colour until its contrast with the background is 3:1.
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

  return { NUM_COLOURS, dashOf, widest, logarithmicTicks, barPaths, paintMarks, inkOf };
})();
