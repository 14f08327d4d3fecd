// Cores, memory and GPUs that a run has used on each host, over time: the rows of hosts.jsonl.

import { Chart } from "./charts.js";
import { fetchJson, h, setText } from "./dom.js";

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#56b4e9", "#b8860b", "#8a8a8a", "#882255"];
const MOST_POINTS = 1300;
// A key of a row is one of these, and the host: cores/node1, gpu/node1/0.
const CHARTS = [["cores", "Cores in use", "cores"], ["memory", "Memory", "GiB"],
  ["gpu", "GPUs, busy", "%"], ["gpu_memory", "GPU memory", "GiB"]];

export class Hosts {
  constructor(key) {
    this.key = key;
    this.columns = null;
    this.charts = new Map();
    this.grid = h("div", { class: "charts" });
    this.note = h("p", { class: "soft" });
    this.element = h("div", {}, this.note, this.grid);
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
    const { seconds } = this.columns;
    const last = seconds?.mean[seconds.mean.length - 1];
    const isNext = (row) => Object.keys(row).every((key) => key in this.columns) && row.seconds >= last;
    if (!seconds || seconds.mean.length > MOST_POINTS || !rows.every(isNext)) {
      this.reload(); // a host is new, the run was resumed, or there are too many points
      return;
    }
    for (const row of rows.filter((each) => each.seconds > last)) {
      for (const [key, { mean }] of Object.entries(this.columns)) mean.push(row[key] ?? null);
    }
    this.draw();
  }

  draw() {
    if (document.hidden) return;
    const hosts = this.keysOf("cores").length;
    const part = hosts > COLOURS.length ? ` The charts show ${COLOURS.length} of ${hosts}.` : "";
    setText(this.note, hosts ? `What processes of the run use on each host, and its GPUs.${part}` :
      "No row of hosts.jsonl has been written yet: the first follows after 10 s.");
    for (const [kind, title, unit] of CHARTS) {
      const keys = this.keysOf(kind).slice(0, COLOURS.length), text = JSON.stringify(keys);
      let entry = this.charts.get(kind);
      if (entry && entry.text !== text) {
        entry.chart.destroy();
        entry = null;
      }
      if (!keys.length) continue;
      if (!entry) {
        const chart = new Chart({ title, unit, isClock: true, fromZero: true, sync: "hosts",
          xFormat: (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false }),
          lines: keys.map((key, i) => ({ label: key.slice(kind.length + 1), colour: COLOURS[i] })) });
        entry = { chart, text };
        this.charts.set(kind, entry);
        this.grid.append(chart.figure);
      }
      const scale = unit === "GiB" ? 1024 : 1;
      entry.chart.setData(this.columns.time.mean, keys.map((key) =>
        this.columns[key].mean.map((value) => (value === null ? null : value / scale))));
    }
  }

  keysOf(kind) {
    return Object.keys(this.columns).filter((key) => key.startsWith(`${kind}/`));
  }

  destroy() {
    for (const { chart } of this.charts.values()) chart.destroy();
  }
}
