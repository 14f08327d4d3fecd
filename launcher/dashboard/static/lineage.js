// Who took from whom in a population: a line for each member along the frames, and its exchanges.

import { formatNumber } from "./charts.js";
import { h, svg } from "./dom.js";

const WIDTH = 900, ROW = 26, LEFT = 70, RIGHT = 60, TOP = 16;

/** Return a picture of each population: {name, frames, members, exchanges}. */
export function drawLineages(populations, runs) {
  return populations.map((population) => drawLineage(population, runs));
}

function drawLineage({ name, frames, members, exchanges }, runs) {
  const x = (at) => LEFT + (at / (frames || 1)) * (WIDTH - LEFT - RIGHT), y = (member) => TOP + member * ROW;
  const keys = new Map(runs.map((run) => [run.name, run.key]));
  const label = (member) => `${name}-${String(member).padStart(3, "0")}`;
  const lines = [...Array(members).keys()].map((member) => {
    const text = svg("text", { x: 0, y: y(member) + 4 }, `trial ${member}`), key = keys.get(label(member));
    return [svg("path", { d: `M${LEFT},${y(member)}H${WIDTH - RIGHT}`, class: "member" }),
      key ? svg("a", { href: `#/run/${key}` }, text) : text];
  });
  const drawn = exchanges.map(({ member, from, frames: at, values, before }) => svg("g", { class: "exchange" },
    svg("path", { d: `M${x(at)},${y(from)}V${y(member)}` }),
    svg("circle", { cx: x(at), cy: y(member), r: 4 }),
    svg("title", {}, `trial ${member} took from trial ${from} at ${formatNumber(at)} frames: ` + Object.keys(values)
      .map((each) => `${each} from ${describe(before[each])} to ${describe(values[each])}`).join(", "))));
  const height = TOP + members * ROW;
  return h("figure", { class: "card chart lineage" },
    h("figcaption", {}, h("span", { class: "title" }, name, h("small", {}, "who took from whom"))),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
      "aria-label": `${members} members with ${exchanges.length} exchanges` }, lines.flat(), drawn,
    svg("text", { x: WIDTH, y: height - 4, "text-anchor": "end" }, `${formatNumber(frames)} frames`)));
}

function describe(value) {
  return typeof value === "number" ? formatNumber(value) : String(value);
}
