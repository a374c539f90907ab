// Prepares the numbers of a chart: columns, stacked if needed, thinned to the resolution of the screen.
"use strict";

const tokenloomChartData = (() => {
  const MOST_SERIES = 12;

  // A chart as columns: `x` ascending, `series[].values` with NaN for gaps and values outside of a logarithmic axis.
  function prepared(chart) {
    const bars = chart.kind === "bars";
    let x = Float64Array.from(chart.x.values);
    let series = chart.series.map((each) => ({ name: each.name, colour: each.colour, values: numbers(each.values, x.length, bars), others: false }));
    if (bars && chart.x.scale === "log" && x.length > 1 && !(x[0] > 0)) x[0] = x.find((edge) => edge > 0) / 2;
    const order = orderOf(x, chart.x.scale === "log", bars);
    if (order !== null) {
      x = order.map((index) => x[index]);
      series = series.map((each) => ({ ...each, values: order.map((index) => each.values[index]) }));
    }
    if (chart.kind === "stacked") series = withRestAsOne(series);
    else series.forEach((each, number) => { each.others = series.length > MOST_SERIES && number >= MOST_SERIES - 1; });
    if (chart.y.scale === "log") series.forEach((each) => each.values.forEach((value, i) => { if (!(value > 0)) each.values[i] = NaN; }));
    return { x, series };
  }

  function numbers(values, length, bars) {
    const found = new Float64Array(length).fill(NaN);
    const count = Math.min(values.length, bars ? length - 1 : length);
    for (let i = 0; i < count; i++) found[i] = values[i] === null ? NaN : values[i];
    return found;
  }

  // The order of points by x, without those outside of the axis; null if they are already in order.
  function orderOf(x, logarithmic, bars) {
    const fits = (value) => Number.isFinite(value) && (!logarithmic || value > 0);
    let asItIs = true;
    for (let i = 0; i < x.length && asItIs; i++) asItIs = fits(x[i]) && (i === 0 || x[i] >= x[i - 1]);
    if (asItIs || bars) return null;
    const kept = [...x.keys()].filter((index) => fits(x[index]));
    return Float64Array.from(kept.sort((a, b) => x[a] - x[b]));
  }

  // Sums up the series after the eleventh, since people distinguish at most twelve colours.
  function withRestAsOne(series) {
    if (series.length <= MOST_SERIES) return series;
    const rest = series.slice(MOST_SERIES - 1);
    const values = rest[0].values.map((_, i) => rest.reduce((sum, each) => sum + (each.values[i] || 0), 0));
    return [...series.slice(0, MOST_SERIES - 1), { name: `${rest.length} others`, values, others: true }];
  }

  // Cumulative sums of the visible series.
  function stacked(series, hidden) {
    let below = null;
    return series.map((each, number) => {
      const values = each.values.map((value, i) => (below === null ? 0 : below[i]) + (hidden.has(number) ? 0 : value || 0));
      below = values;
      return values;
    });
  }

  // Indices of the points to draw at a width in pixels: for each pixel the first and last point, and for each series the
  // minimum, the maximum and a gap. A spike of one point in a million stays visible.
  function thinned(x, columns, low, high, pixels, place) {
    const first = Math.max(0, lowerBound(x, low) - 1);
    const stop = Math.min(x.length, lowerBound(x, high, true) + 1);
    if (stop - first <= 2 * pixels) return range(first, stop);
    const kept = [];
    const from = place(low), scale = pixels / (place(high) - from);
    const pixelOf = (i) => Math.floor((place(x[i]) - from) * scale);
    for (let start = first; start < stop; ) {
      const pixel = pixelOf(start);
      let end = start + 1;
      while (end < stop && pixelOf(end) === pixel) end++;
      keepOf(columns, start, end, kept);
      start = end;
    }
    return kept;
  }

  function keepOf(columns, start, end, kept) {
    const found = new Set([start, end - 1]);
    if (end - start > 2) {
      for (const values of columns) {
        let least = -1, greatest = -1, gap = -1;
        for (let i = start; i < end; i++) {
          const value = values[i];
          if (value !== value) gap = gap < 0 ? i : gap;
          else {
            if (least < 0 || value < values[least]) least = i;
            if (greatest < 0 || value > values[greatest]) greatest = i;
          }
        }
        for (const index of [least, greatest, gap]) if (index >= 0) found.add(index);
      }
    }
    kept.push(...[...found].sort((a, b) => a - b));
  }

  // The first index with a value >= (with `above`: >) the given one, in ascending numbers.
  function lowerBound(values, value, above = false) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < value || (above && values[middle] === value)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The functions that map values to a linear or logarithmic axis.
  function placing(scale) {
    return scale === "log" ? Math.log : (value) => value;
  }

  function nearest(values, value) {
    const after = Math.min(lowerBound(values, value), values.length - 1);
    return after > 0 && value - values[after - 1] <= values[after] - value ? after - 1 : after;
  }

  // The minimum and maximum of columns without gaps; null if there are only gaps.
  function limits(columns, start, stop) {
    let low = Infinity, high = -Infinity;
    for (const values of columns) {
      for (let i = start; i < stop; i++) {
        if (values[i] < low) low = values[i];
        if (values[i] > high) high = values[i];
      }
    }
    return low <= high ? [low, high] : null;
  }

  function range(start, stop) {
    return Array.from({ length: Math.max(0, stop - start) }, (_, i) => start + i);
  }

  return { prepared, stacked, thinned, placing, lowerBound, nearest, limits };
})();
