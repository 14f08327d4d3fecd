// The values of runs against their returns: a chart for each number in which the runs differ.

import { formatNumber } from "./charts.js";
import { h, svg } from "./dom.js";

const WIDTH = 420, HEIGHT = 220, LEFT = 52, BOTTOM = 30, TOP = 12, RIGHT = 14;
const LEAST_RUNS = 4, MOST_CHARTS = 6;
const LOG_RATIO = 50; // between the highest and the lowest value, from which the axis is logarithmic

/** Return charts of runs, given as {key, name, settings, value}; `names` are their settings. */
export function drawScatters(runs, names, title) {
  const known = runs.filter(({ value }) => value !== null);
  const numeric = names.filter((name) => known.length >= LEAST_RUNS &&
    known.every(({ settings }) => settings[name] !== undefined && settings[name] !== "" && Number.isFinite(Number(settings[name]))));
  return numeric.slice(0, MOST_CHARTS).map((name) => drawScatter(known, name, title));
}

function drawScatter(runs, name, title) {
  const values = runs.map(({ settings }) => Number(settings[name]));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isLog = low > 0 && high / low >= LOG_RATIO;
  const x = makeScale(values, LEFT + 8, WIDTH - RIGHT, isLog);
  const y = makeScale(runs.map(({ value }) => value), HEIGHT - BOTTOM - 8, TOP);
  const bottom = HEIGHT - BOTTOM, tick = (text, at) => svg("text", { ...at, class: "tick" }, text);
  const [worst, best] = [Math.min(...runs.map((run) => run.value)), Math.max(...runs.map((run) => run.value))];
  return h("figure", { class: "card chart scatter" },
    h("figcaption", {}, h("span", { class: "title" }, name, h("small", {}, isLog ? "logarithmic" : ""))),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
      "aria-label": `${title} of ${runs.length} runs by ${name}` },
    svg("path", { d: `M${LEFT},${TOP}V${bottom}H${WIDTH - RIGHT}`, class: "axis" }),
    tick(formatNumber(low), { x: x(low), y: HEIGHT - 12, "text-anchor": "start" }),
    tick(formatNumber(high), { x: x(high), y: HEIGHT - 12, "text-anchor": "end" }),
    tick(formatNumber(worst), { x: LEFT - 6, y: y(worst) + 4, "text-anchor": "end" }),
    tick(formatNumber(best), { x: LEFT - 6, y: y(best) + 4, "text-anchor": "end" }),
    ...runs.map((run, i) => svg("a", { href: `#/run/${run.key}` },
      svg("circle", { cx: x(values[i]), cy: y(run.value), r: 4.5, class: "dot" },
        svg("title", {}, `${run.name}: ${name}=${run.settings[name]}, ${formatNumber(run.value)}`))))),
    h("small", { class: "place" }, `${title} of each run`));
}

/** Return a function from values to places between `from` and `to`. */
function makeScale(values, from, to, isLog = false) {
  const convert = isLog ? Math.log : (value) => value;
  const [low, high] = [convert(Math.min(...values)), convert(Math.max(...values))];
  return (value) => (high > low ? from + ((convert(value) - low) / (high - low)) * (to - from) : (from + to) / 2);
}
