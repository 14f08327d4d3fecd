// Cores, memory and GPUs that learners and actors have used on each host, over time: hosts.jsonl.
//
// The server keeps a bounded history, which is fetched again when the page has many more points.

import { ChartGrid, MOST_LINES } from "./charts.js";
import { fetchJson, h, setText } from "./dom.js";

const MOST_POINTS = 1300;
// A key of a row is one of these, and the host: cores/node1, gpu/node1/0.
const CHARTS = [["cores", "Cores in use", "cores", "hosts"], ["memory", "Memory", "GiB", "hosts"],
  ["gpu", "GPUs, busy", "%", "GPUs"], ["gpu_memory", "GPU memory", "GiB", "GPUs"]];

export class Hosts {
  constructor(key, events) {
    this.key = key;
    this.events = events;
    this.columns = null;
    this.grid = new ChartGrid(() => this.draw());
    this.note = h("p", { class: "soft" });
    this.element = h("div", {}, this.note, this.grid.element);
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
    const parts = new Set(), charts = [];
    for (const [kind, title, unit, of] of CHARTS) {
      const all = Object.keys(this.columns).filter((key) => key.startsWith(`${kind}/`));
      const keys = all.slice(0, MOST_LINES), scale = unit === "GiB" ? 1024 : 1;
      if (all.length > keys.length) parts.add(`${keys.length} of ${all.length} ${of}`);
      if (!keys.length) continue;
      charts.push({ name: kind, x: this.columns.time,
        options: { title, unit, isClock: true, fromZero: true, sync: "hosts",
          events: () => this.events.marks("time"),
          xFormat: (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false }),
          lines: keys.map((key, i) => ({ label: key.slice(kind.length + 1), colour: i })) },
        lines: keys.map((key) => ({ mean: this.columns[key].map((value) =>
          (value === null ? null : value / scale)) })) });
    }
    this.grid.show(charts);
    const shown = parts.size ? ` The charts show ${[...parts].join(" and ")}.` : "";
    setText(this.note, charts.length ? `What learners and actors use on each host, and the GPUs.${shown}` :
      "The run has no hosts.jsonl (yet): a run writes the first row after 10 s.");
  }

  destroy() {
    this.grid.destroy();
  }
}
