// All runs side by side: a table with each run's curve, and the returns of chosen ones in one chart.

import { Chart, formatDuration, formatNumber, OVER_TIME } from "./charts.js";
import { fetchJson, h, isOver, setText, stateKind, stateLabel, svg } from "./dom.js";

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#56b4e9", "#b8860b", "#8a8a8a", "#882255"];
const REFRESH_MS = 10_000;

export class RunsPage {
  constructor() {
    this.runs = [];
    this.curves = new Map(); // by run: its coarse columns
    this.chosen = new Set();
    this.axis = "frames";
    this.rows = new Map();
    this.body = h("tbody");
    this.note = h("p", { class: "soft" }, "Looking for runs.");
    this.part = h("span", { class: "soft" });
    this.chartPlace = h("div", { class: "compare" });
    this.axisPicker = h("select", { change: (event) => { this.axis = event.target.value; this.compare(); } },
      h("option", { value: "frames" }, "over frames"), h("option", { value: "seconds" }, "over training time"));
    this.element = h("div", { class: "page" },
      h("h1", {}, "Runs"),
      h("section", { class: "card compare-card" },
        h("div", { class: "bar" }, h("h2", {}, "Mean return, side by side"), this.part,
          h("label", {}, h("span", { class: "hidden" }, "Axis"), this.axisPicker)),
        this.chartPlace),
      h("section", { class: "card table" },
        h("table", { class: "runs" },
          h("thead", {}, h("tr", {}, ...["", "run", "state", "level", "algorithm", "frames", "frames/s",
            "return", "lag", "curve"].map((name) => h("th", { scope: "col",
            class: ["frames", "frames/s", "return", "lag"].includes(name) ? "number" : "" }, name)))),
          this.body), this.note));
    this.timer = setInterval(() => this.refresh(), REFRESH_MS);
  }

  reload() {
    this.refresh();
  }

  tell(name, content) {
    if (name !== "runs") return;
    const isFirst = !this.runs.length;
    this.runs = content;
    if (isFirst) for (const run of content.slice(0, 4)) this.chosen.add(run.key);
    this.show();
    if (isFirst) this.refresh();
  }

  show() {
    setText(this.note, this.runs.length ? `${this.runs.length} runs; the newest first` :
      "There is no run yet. A run appears here once it has started.");
    for (const [key, row] of this.rows) {
      if (!this.runs.some((run) => run.key === key)) {
        row.element.remove();
        this.rows.delete(key);
      }
    }
    this.runs.forEach((run, i) => {
      const row = this.rows.get(run.key) || this.makeRow(run);
      row.update(run);
      if (this.body.children[i] !== row.element) this.body.insertBefore(row.element, this.body.children[i]);
    });
  }

  makeRow(run) {
    const box = h("input", { type: "checkbox", "aria-label": `compare ${run.name}`, change: (event) => {
      if (event.target.checked) this.chosen.add(run.key);
      else this.chosen.delete(run.key);
      this.compare();
    } });
    box.checked = this.chosen.has(run.key);
    const cells = Object.fromEntries(["level", "algorithm", "frames", "rate", "value", "lag"].map((name) =>
      [name, h("td", { class: ["level", "algorithm"].includes(name) ? "" : "number" })]));
    const state = h("span", {}), end = h("span", { class: "soft end" }), spark = h("td", { class: "spark" });
    const link = h("a", { href: `#/run/${run.key}` });
    const element = h("tr", {}, h("td", {}, box), h("td", {}, link), h("td", {}, state, end),
      ...Object.values(cells), spark);
    const row = { element, spark, update: (now) => {
      setText(link, now.name);
      link.title = now.logdir;
      setText(state, stateLabel(now.state));
      state.className = `state ${stateKind(now.state)}`;
      setText(end, isOver(now.state) ? now.verdict.replace(/^(ended|failed)(: )?/, "") : "");
      setText(cells.level, now.level);
      setText(cells.algorithm, now.algorithm);
      setText(cells.frames, formatNumber(now.frames));
      setText(cells.rate, now.state === "running" ? formatNumber(now.frames_per_second) : "");
      setText(cells.value, now.episode_return == null ? "–" : now.episode_return.toFixed(2));
      setText(cells.lag, now.policy_lag == null ? "–" : now.policy_lag.toFixed(1));
      element.title = now.seconds == null ? "" : `${formatDuration(now.seconds)} of training`;
    } };
    this.rows.set(run.key, row);
    return row;
  }

  /** Fetch the curves of the runs, those of ended ones once. */
  async refresh() {
    if (document.hidden) return;
    for (const run of this.runs) {
      const known = this.curves.get(run.key);
      if (known && known.frames === run.frames) continue;
      try {
        this.curves.set(run.key, { frames: run.frames, columns: await fetchJson(`run/${run.key}/history?brief`) });
      } catch {
        continue; // it was removed
      }
      if (!this.chartPlace.isConnected) return;
      const row = this.rows.get(run.key);
      if (row) row.spark.replaceChildren(drawSpark(this.curves.get(run.key).columns));
    }
    this.compare();
  }

  compare() {
    const chosen = this.runs.filter((run) => this.chosen.has(run.key) &&
      this.curves.get(run.key)?.columns.episode_return);
    const shown = chosen.slice(0, COLOURS.length);
    setText(this.part, chosen.length > shown.length ? `${shown.length} of ${chosen.length} runs are drawn` : "");
    this.chart?.destroy();
    this.chart = null;
    if (!shown.length) {
      this.chartPlace.replaceChildren(h("p", { class: "soft" }, "Choose runs in the table to compare their returns."));
      return;
    }
    const isTime = this.axis === "seconds";
    this.chart = new Chart({ title: "", xTitle: "frames", height: 260, ...(isTime ? OVER_TIME : {}),
      lines: shown.map((run, i) => ({ label: run.name, colour: COLOURS[i] })) });
    this.chartPlace.replaceChildren(this.chart.figure);
    this.chart.figure.classList.remove("card");
    const lists = shown.map((run) => {
      const { columns } = this.curves.get(run.key);
      return [columns[this.axis].mean, columns.episode_return.mean];
    });
    const { data } = joinByX(lists);
    this.chart.setData(data[0], data.slice(1));
  }

  destroy() {
    clearInterval(this.timer);
    this.chart?.destroy();
  }
}

/** Join lists of (x, y) to one list of x, with null where a line has no point. */
function joinByX(lists) {
  const all = [...new Set(lists.flatMap(([x]) => x))].filter((x) => x !== null).sort((a, b) => a - b);
  const lines = lists.map(([x, y]) => {
    const at = new Map(x.map((each, i) => [each, y[i]]));
    return all.map((each) => at.get(each) ?? null);
  });
  return { data: [all, ...lines] };
}

function drawSpark(columns) {
  const width = 120, height = 28, y = columns.episode_return?.mean, x = columns.frames?.mean;
  if (!x || !y) return h("span", { class: "soft" }, "–");
  const known = x.map((each, i) => [each, y[i]]).filter(([, value]) => value !== null);
  if (known.length < 2) return h("span", { class: "soft" }, "–");
  const low = Math.min(...known.map((p) => p[1])), high = Math.max(...known.map((p) => p[1]));
  const end = known[known.length - 1][0] || 1;
  const points = known.map(([a, b]) =>
    `${((a / end) * width).toFixed(1)},${(height - 2 - ((b - low) / (high - low || 1)) * (height - 4)).toFixed(1)}`);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `from ${formatNumber(known[0][1])} to ${formatNumber(known[known.length - 1][1])}` },
  svg("polyline", { points: points.join(" "), class: "spark-line" }));
}
