// Cores, memory and throughput of a run's processes on each host, and this machine's GPUs, over time.

import { Chart } from "./charts.js";
import { fetchJson, h, setText } from "./dom.js";

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#56b4e9", "#b8860b", "#8a8a8a", "#882255"];
const MOST_POINTS = 1300;
const CHARTS = [["hosts", "cores", "Cores in use", "cores"], ["hosts", "memory", "Memory", "GiB"],
  ["hosts", "frames_per_second", "Actors' throughput", "frames/s"],
  ["gpus", "busy", "GPU, busy", "%"], ["gpus", "memory", "GPU memory", "GiB"]];

export class Hosts {
  constructor(key) {
    this.key = key;
    this.usage = null;
    this.charts = new Map();
    this.grid = h("div", { class: "charts" });
    this.note = h("p", { class: "soft" });
    this.element = h("div", {}, this.note, this.grid);
  }

  async reload() {
    try {
      this.usage = await fetchJson(`run/${this.key}/usage`);
    } catch {
      return; // the stream says that the server is away
    }
    this.draw();
  }

  add(point) {
    if (!this.usage || !point.times.length) return;
    const { times } = this.usage;
    if (times.length && point.times[0] <= times[times.length - 1]) return;
    if (times.length > MOST_POINTS) {
      this.reload();
      return;
    }
    for (const kind of ["hosts", "gpus"]) {
      for (const name of Object.keys(point[kind])) {
        this.usage[kind][name] ||= Object.fromEntries(Object.keys(point[kind][name]).map((field) =>
          [field, times.map(() => null)]));
      }
      for (const [name, fields] of Object.entries(this.usage[kind])) {
        for (const [field, list] of Object.entries(fields)) list.push(point[kind][name]?.[field][0] ?? null);
      }
    }
    times.push(point.times[0]);
    this.draw();
  }

  draw() {
    if (document.hidden) return;
    const all = Object.keys(this.usage.hosts).length;
    const part = all > COLOURS.length ? ` The charts show ${COLOURS.length} of ${all} hosts.` : "";
    setText(this.note, "Since this dashboard was started: no file records it. " +
      `GPUs are those of this machine.${part}`);
    for (const [kind, field, title, unit] of CHARTS) {
      const names = Object.keys(this.usage[kind]).slice(0, COLOURS.length);
      const id = `${kind} ${field}`, text = JSON.stringify(names);
      let entry = this.charts.get(id);
      if (entry && entry.text !== text) {
        entry.chart.destroy();
        entry = null;
      }
      if (!names.length) continue;
      if (!entry) {
        const chart = new Chart({ title, unit, isClock: true, fromZero: true, sync: "hosts",
          xFormat: (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false }),
          lines: names.map((label, i) => ({ label, colour: COLOURS[i] })) });
        entry = { chart, text };
        this.charts.set(id, entry);
        this.grid.append(chart.figure);
      }
      const scale = unit === "GiB" ? 1024 : 1;
      entry.chart.setData(this.usage.times, names.map((name) =>
        this.usage[kind][name][field].map((value) => (value === null ? null : value / scale))));
    }
  }

  destroy() {
    for (const { chart } of this.charts.values()) chart.destroy();
  }
}
