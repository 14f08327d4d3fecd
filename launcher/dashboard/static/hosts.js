// Cores, memory and GPUs that learners and actors have used on each host, over time: hosts.jsonl.
//
// The server keeps a bounded history, which is fetched again when the page has many more points.

import { Chart } from "./charts.js";
import { fetchJson, h, setText } from "./dom.js";

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#56b4e9", "#b8860b", "#8a8a8a", "#882255"];
const MOST_POINTS = 1300;
// A key of a row is one of these, and the host: cores/node1, gpu/node1/0.
const CHARTS = [["cores", "Cores in use", "cores", "hosts"], ["memory", "Memory", "GiB", "hosts"],
  ["gpu", "GPUs, busy", "%", "GPUs"], ["gpu_memory", "GPU memory", "GiB", "GPUs"]];

export class Hosts {
  constructor(key, events) {
    this.key = key;
    this.events = events;
    this.columns = null;
    this.charts = new Map();
    this.grid = h("div", { class: "charts" });
    this.note = h("p", { class: "soft" });
    this.element = h("div", {}, this.note, this.grid);
    events.onChange(() => this.redraw());
    this.onVisible = () => document.visibilityState === "visible" && this.draw();
    document.addEventListener("visibilitychange", this.onVisible);
  }

  async reload() {
    try {
      this.columns = await fetchJson(`run/${this.key}/hosts`);
    } catch {
      return; // the stream says that the server is away
    }
    this.draw();
  }

  add(rows) {
    if (!this.columns) return;
    const { time } = this.columns;
    const last = time?.[time.length - 1];
    const isKnown = (row) => Object.keys(row).every((key) => key in this.columns);
    if (!time || time.length > MOST_POINTS || !rows.every(isKnown)) {
      this.reload(); // a host is new, or there are too many points
      return;
    }
    for (const row of rows.filter((each) => each.time > last)) {
      for (const [key, values] of Object.entries(this.columns)) values.push(row[key] ?? null);
    }
    this.draw();
  }

  draw() {
    if (document.hidden || !this.columns) return;
    const parts = [];
    for (const [kind, title, unit, of] of CHARTS) {
      const all = Object.keys(this.columns).filter((key) => key.startsWith(`${kind}/`));
      const keys = all.slice(0, COLOURS.length), text = JSON.stringify(keys);
      const part = `${keys.length} of ${all.length} ${of}`;
      if (all.length > keys.length && !parts.includes(part)) parts.push(part);
      let entry = this.charts.get(kind);
      if (entry?.text !== text) {
        entry?.chart.destroy();
        this.charts.delete(kind);
        entry = null;
      }
      if (!keys.length) continue;
      if (!entry) {
        const chart = new Chart({ title, unit, isClock: true, fromZero: true, sync: "hosts",
          events: () => this.events.marks("time"),
          xFormat: (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false }),
          lines: keys.map((key, i) => ({ label: key.slice(kind.length + 1), colour: COLOURS[i] })) });
        entry = { chart, text };
        this.charts.set(kind, entry);
        this.grid.replaceChildren(...CHARTS.map(([each]) => this.charts.get(each)?.chart.figure).filter(Boolean));
      }
      const scale = unit === "GiB" ? 1024 : 1;
      entry.chart.setData(this.columns.time, keys.map((key) =>
        this.columns[key].map((value) => (value === null ? null : value / scale))));
    }
    const shown = parts.length ? ` The charts show ${parts.join(" and ")}.` : "";
    setText(this.note, this.charts.size ? `What learners and actors use on each host, and the GPUs.${shown}` :
      "The run has no hosts.jsonl (yet): a run writes the first row after 10 s.");
  }

  redraw() {
    for (const { chart } of this.charts.values()) chart.redraw();
  }

  destroy() {
    document.removeEventListener("visibilitychange", this.onVisible);
    for (const { chart } of this.charts.values()) chart.destroy();
  }
}
