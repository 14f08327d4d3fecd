// All runs: a metric of the ticked ones, in a chart for each level, and a table of all.
//
// Runs that differ only in the seed are one line: their mean, in a band from the lowest to the highest.

import { ChartGrid, formatDuration, formatNumber, MOST_LINES, OVER_TIME } from "./charts.js";
import { fetchJson, h, isOver, makeAxisChoice, setText, showState, stateKind, stateLabel, svg } from "./dom.js";
import { drawLineages } from "./lineage.js";
import { drawScatters } from "./scatter.js";
import { Table } from "./table.js";

export class RunsPage {
  constructor({ panels, folder }) {
    this.panels = panels;
    this.folder = folder;
    this.runs = [];
    this.curves = new Map(); // by run: its coarse columns, and to which row and metric they belong
    this.ticks = new Map(); // by run: what the user chose; by default, a run that has rows is drawn
    this.filter = h("input", { type: "search", placeholder: "name, state or setting", "aria-label":
      "Show runs with these words", input: () => this.reload() });
    this.metric = h("select", { "aria-label": "Metric", change: () => this.reload() },
      ...panels.map(({ key, title }) => h("option", { value: key }, title)));
    this.axis = makeAxisChoice(() => this.show());
    this.others = h("input", { type: "checkbox", change: () => this.reload() });
    this.othersLabel = h("span");
    this.othersChoice = h("label", {}, this.others, this.othersLabel);
    this.all = h("input", { type: "checkbox", "aria-label": "draw all of these runs", change: () => {
      for (const run of this.shown) this.ticks.set(run.key, this.all.checked);
      this.show();
    } });
    this.part = h("span", { class: "soft" });
    this.note = h("p", { class: "soft" }, "Looking for runs.");
    this.grid = new ChartGrid(() => this.reload());
    this.scatters = h("div", { class: "charts" });
    this.table = new Table("runs", "Runs", { decorate: (row, { seconds }) => {
      row.title = seconds === null ? "" : `${formatDuration(seconds)} of training`;
    } });
    this.element = h("div", { class: "page" }, h("h1", {}, "Runs"),
      h("div", { class: "bar choices" }, this.filter, this.metric, this.axis, this.othersChoice, this.part),
      this.grid.element, this.scatters, this.note, this.table.element);
    this.lineage = h("div");
    this.element.append(this.lineage);
  }

  /** Fetch who took from whom in the populations of this folder. */
  async showLineages() {
    const found = await fetchJson("lineages").catch(() => []), text = JSON.stringify(found);
    if (text === this.lineages) return;
    this.lineages = text;
    this.lineage.replaceChildren(...drawLineages(found, this.runs));
  }

  tell(name, content) {
    if (name !== "runs") return;
    this.showLineages();
    this.runs = content;
    this.reload();
  }

  /** The runs that the table shows. */
  get shown() {
    const words = this.filter.value.toLowerCase().split(/\s+/);
    return this.runs.filter((run) => {
      const settings = Object.entries(run.settings).map((pair) => pair.join("="));
      const text = [run.name, stateLabel(run.state), run.logdir, ...settings].join("\n").toLowerCase();
      return (this.others.checked || !run.elsewhere) && words.every((word) => text.includes(word));
    });
  }

  isTicked(run) {
    return this.ticks.get(run.key) ?? run.frames !== null;
  }

  /** Fetch the curves of the runs that are shown, those of ended ones once. */
  async reload() {
    const turn = this.turn = {}, metric = this.metric.value;
    this.show();
    for (const run of this.shown) {
      if (document.hidden || turn !== this.turn) return; // another call goes on
      const known = this.curves.get(run.key);
      if (known && known.frames === run.frames && known.metric === metric) continue;
      try {
        const columns = await fetchJson(`run/${run.key}/history?brief=${encodeURIComponent(metric)}`);
        this.curves.set(run.key, { frames: run.frames, metric, columns });
      } catch {
        // it was removed
      }
    }
    this.show();
  }

  show() {
    const { shown } = this, others = this.runs.filter((run) => run.elsewhere).length;
    this.othersChoice.hidden = !others;
    setText(this.othersLabel, ` and ${countRuns(others)} of other folders`);
    this.all.checked = shown.length > 0 && shown.every((run) => this.isTicked(run));
    setText(this.note, shown.length ? `${countRuns(shown.length)}, the newest first` : this.runs.length
      ? "No run is shown." : `There is no run in ${this.folder} yet. A run appears here once it has started.`);
    this.table.show(this.makeColumns(shown), shown);
    if (!document.hidden) this.draw(shown.filter((run) => this.isTicked(run)));
  }

  makeColumns(shown) {
    const metric = this.panels.find(({ key }) => key === this.metric.value);
    const setting = (name, title = name) => ({ name: title, value: (run) => run.settings[name] });
    const number = (name, value) => ({ name, value, isNumber: true,
      text: (run) => (value(run) === null ? "" : formatNumber(value(run))) });
    const settings = listDiffering(shown).filter((name) => name !== "level_name" && name !== "algorithm");
    return [
      { name: "", heading: this.all, className: "tick", show: (cell, run) => this.showBox(cell, run) },
      { name: "run", value: ({ name }) => name, className: "name", show: showLink },
      { name: "state", value: ({ state }) => stateLabel(state), className: "end", show: showEnd },
      setting("level_name", "level"), setting("algorithm"), ...settings.map((name) => setting(name)),
      number("frames", (run) => run.frames),
      number("frames/s", (run) => (run.state === "running" ? run.frames_per_second : null)),
      number(metric.title, (run) => this.readCurve(run).at(-1)?.[1] ?? null),
      number("lag", (run) => run.policy_lag),
      { name: "curve", className: "spark", show: (cell, run) => this.showSpark(cell, run) },
    ];
  }

  showBox(cell, run) {
    if (!cell.firstChild) {
      cell.append(h("input", { type: "checkbox", "aria-label": `draw ${run.name}`, change: (event) => {
        this.ticks.set(run.key, event.target.checked);
        this.show();
      } }));
    }
    cell.firstChild.checked = this.isTicked(run);
  }

  showSpark(cell, run) {
    const known = this.curves.get(run.key);
    if (cell.known !== known) cell.replaceChildren(drawSpark(this.readCurve(run, "frames")));
    cell.known = known;
  }

  /** Return the points (x, y) of a run's curve. */
  readCurve(run, axis = this.axis.value) {
    const { [axis]: x = [], [this.metric.value]: y = [] } = this.curves.get(run.key)?.columns || {};
    return x.map((each, i) => [each, y[i] ?? null]).filter(([at, value]) => at !== null && value !== null);
  }

  /** Draw the curves of these runs, with a colour for each kind of settings. */
  draw(runs) {
    const drawn = runs.filter((run) => this.readCurve(run).length);
    const names = listDiffering(drawn).filter((name) => name !== "level_name" && name !== "seed");
    const apart = tellApart(drawn, ["algorithm", ...names.filter((name) => name !== "algorithm")]);
    const kinds = groupBy(drawn, (run) => describe(run, apart));
    const colours = [...kinds.keys()].sort().slice(0, MOST_LINES); // whichever run is the newest
    setText(this.part, kinds.size > colours.length ? `${colours.length} of ${kinds.size} lines are drawn` : "");
    const { title, share } = this.panels.find(({ key }) => key === this.metric.value);
    const charts = [];
    for (const [level, here] of groupBy(drawn, (run) => run.settings.level_name || "unknown level")) {
      const members = groupBy(here, (run) => describe(run, apart));
      const lines = colours.filter((kind) => members.has(kind)).map((kind) => [kind, members.get(kind)]);
      const curves = lines.map(([, some]) => some.map((run) => this.readCurve(run)));
      const x = [...new Set(curves.flat(2).map(([at]) => at))].sort((a, b) => a - b);
      charts.push({ name: level, x, lines: curves.map((each) => combine(each, x)),
        options: { title: level, unit: title, share, height: 260, xTitle: "frames", sync: "runs",
          ...(this.axis.value === "seconds" ? OVER_TIME : {}),
          lines: lines.map(([kind, some]) => ({ label: nameLine(kind, some), colour: colours.indexOf(kind) })) } });
    }
    const text = JSON.stringify(charts);
    if (text !== this.drawn) { // an unchanged one keeps its pointer and its part
      this.grid.show(charts);
      const ends = drawn.map((run) => ({ ...run, value: this.readCurve(run).at(-1)[1] }));
      this.scatters.replaceChildren(...drawScatters(ends, names, title));
    }
    this.drawn = text;
  }

  destroy() {
    this.turn = null;
    this.grid.destroy();
  }
}

function countRuns(number) {
  return `${number} run${number === 1 ? "" : "s"}`;
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) || []), item]);
  return groups;
}

/** Return the names of the settings of which runs have different values; one that a run lacks is equal. */
function listDiffering(runs) {
  const values = groupBy(runs.flatMap((run) => Object.entries(run.settings)), ([name]) => name);
  return [...values.keys()].filter((name) => new Set(values.get(name).map(([, value]) => value)).size > 1);
}

/** Return the first of these settings that tell runs apart as well as all of them. */
function tellApart(runs, names) {
  const count = (some) => new Set(runs.map((run) => describe(run, some))).size;
  return names.reduce((kept, name) => (count([...kept, name]) > count(kept) ? [...kept, name] : kept), []);
}

function describe({ settings }, names) {
  return names.filter((name) => name in settings)
    .map((name) => (name === "algorithm" ? settings[name] : `${name}=${settings[name]}`)).join(", ");
}

function nameLine(kind, runs) {
  const seeds = new Set(runs.map((run) => run.settings.seed)).size;
  const many = seeds === runs.length ? `${seeds} seeds` : countRuns(runs.length);
  if (runs.length === 1) return kind || runs[0].name;
  return kind ? `${kind} (${many})` : many;
}

/** Return the mean, lowest and highest of curves at each x, of those that have come so far. */
function combine(curves, x) {
  const all = curves.map((points) => interpolate(points, x));
  const [mean, low, high] = [(y) => y.reduce((a, b) => a + b, 0) / y.length, (y) => Math.min(...y), (y) => Math.max(...y)]
    .map((join) => x.map((_, i) => {
      const here = all.map((y) => y[i]).filter((value) => value !== null);
      return here.length ? join(here) : null;
    }));
  return { mean, low, high };
}

/** Return a curve's values at each x, null before its first point and after its last one. */
function interpolate(points, x) {
  let i = 0;
  return x.map((at) => {
    while (i < points.length - 1 && points[i + 1][0] <= at) i++;
    const [[from, y], [to, next]] = [points[i], points[i + 1] || points[i]];
    if (at < from || at > to) return null;
    return to > from ? y + ((at - from) / (to - from)) * (next - y) : y;
  });
}

function showLink(cell, { key, name, logdir }) {
  if (!cell.firstChild) cell.append(h("a", { href: `#/run/${key}` }));
  setText(cell.firstChild, name);
  cell.firstChild.title = logdir;
}

function showEnd(cell, { state, verdict }) {
  showState(cell, stateLabel(state), stateKind(state));
  if (!cell.children[1]) cell.append(h("span", { class: "soft" }));
  setText(cell.children[1], isOver(state) ? verdict.replace(/^(ended|failed)(: )?/, "") : "");
}

function drawSpark(points) {
  if (points.length < 2) return "";
  const width = 120, height = 28, y = points.map(([, value]) => value), end = points.at(-1)[0] || 1;
  const low = Math.min(...y), range = Math.max(...y) - low || 1;
  const drawn = points.map(([at, value]) =>
    `${((at / end) * width).toFixed(1)},${(height - 2 - ((value - low) / range) * (height - 4)).toFixed(1)}`);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `from ${formatNumber(y[0])} to ${formatNumber(y.at(-1))}` },
  svg("polyline", { points: drawn.join(" "), class: "spark-line" }));
}
