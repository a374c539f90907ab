// Number formats of charts: short on axes, exact at the cursor. See README.md of this folder.
"use strict";

const tokenloomChartNumbers = (() => {
  const SPACE = "\u202f"; // narrow no-break space
  const UNITS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const TIMES = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

  // The unit for a magnitude: for seconds, such as hours from two hours on; for other numbers, such as M in 1.2 M.
  function unitOf(size, format) {
    if (format === "share") return [0.01, "%"];
    if (format === "seconds") return TIMES.find(([one]) => size >= (one >= 60 ? 2 * one : one)) || TIMES.at(-1);
    return UNITS.find(([one]) => size >= (one === 1e3 ? 1e4 : one)) || UNITS.at(-1);
  }

  function grouped(digits) {
    return digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  }

  function written(value, digits, unit) {
    const [whole, fraction] = Math.abs(value).toFixed(digits).split(".");
    const number = grouped(whole) + (fraction ? `.${fraction}` : "");
    const sign = value < 0 && /[1-9]/.test(number) ? "−" : "";
    return sign + number + (unit === "" || unit === "%" ? unit : SPACE + unit);
  }

  function exponential(value) {
    return value.toExponential(2).replace(/\.?0*e\+?/, "e").replace(/-/g, "−");
  }

  // Labels of ticks: one unit, and enough digits to distinguish them; on a logarithmic axis each as short as possible.
  function ticks(values, format, logarithmic) {
    if (logarithmic) return values.map((value) => (value === null ? "" : short(value, format)));
    const sizes = values.filter((value) => value !== null).map(Math.abs);
    const size = Math.max(...sizes, 0);
    const [one, unit] = unitOf(size, format);
    const step = values.length > 1 ? Math.abs(values[1] - values[0]) : size;
    if (size >= 1e15 || (size > 0 && size < 1e-4 && format === "number")) return values.map((v) => (v === 0 ? "0" : exponential(v)));
    let digits = 0;
    while (digits < 8 && Math.abs((step / one) * 10 ** digits - Math.round((step / one) * 10 ** digits)) > 1e-6) digits++;
    return values.map((value) => (value === 0 ? `0${unit === "%" ? unit : ""}` : written(value / one, digits, unit)));
  }

  // A single number with up to three significant digits.
  function short(value, format) {
    if (value === 0) return ticks([0], format, false)[0];
    const size = Math.abs(value);
    if (size >= 1e15 || (size < 1e-4 && format !== "seconds" && format !== "share")) return exponential(value);
    const [one, unit] = unitOf(size, format);
    return written(value / one, fewest(Number((size / one).toPrecision(3))), unit);
  }

  // An exact number: integers with all digits, others with up to five significant digits, shares with four.
  function exact(value, format) {
    if (value === null || Number.isNaN(value)) return "–";
    if (format !== "share" && format !== "seconds" && Number.isInteger(value) && Math.abs(value) < 1e15) return written(value, 0, "");
    if (value === 0) return ticks([0], format, false)[0];
    const size = Math.abs(value);
    if (size >= 1e15 || (size < 1e-4 && format !== "seconds" && format !== "share")) return exponential(value);
    const [one, unit] = format === "share" || format === "seconds" ? unitOf(size, format) : [1, ""];
    return written(value / one, fewest(Number((size / one).toPrecision(size / one < 1 ? 3 : unit === "%" ? 4 : 5))), unit);
  }

  function fewest(rounded) {
    const [, fraction = "", exponent = "0"] = rounded.toString().match(/^\d+(?:\.(\d+))?(?:e([+-]\d+))?$/) || [];
    return Math.min(Math.max(0, fraction.length - Number(exponent)), 12);
  }

  return { ticks, short, exact };
})();
