// The live table of a run's processes, as `--status` shows it; failures come first.

import { formatDuration } from "./charts.js";
import { h, hasJustFailed, processKind, setText, stateLabel } from "./dom.js";

const COLUMNS = [
  ["process", (p) => p.name, false],
  ["host", (p) => p.host, false],
  ["state", (p) => stateLabel(p.state), false],
  ["uptime", (p) => (p.up === null ? "" : formatDuration(p.up)), true],
  ["frames/s", (p) => (p.frames_per_second === null ? "" : p.frames_per_second.toFixed(0)), true],
  ["CPU", (p) => (p.cpu === null ? "" : `${p.cpu}%`), true],
  ["memory", (p) => (p.memory === null ? "" : `${p.memory.toLocaleString("en")} MiB`), true],
  ["restarts", (p) => String(p.restarts), true],
  ["last log line", (p) => p.last.replace(/\u001b\[[0-9;]*m/g, ""), false],
];
const VALUES = { uptime: "up", "frames/s": "frames_per_second", CPU: "cpu", memory: "memory",
  restarts: "restarts" };

export class Processes {
  /** `select` is called with the name of the process whose log the user wants to read. */
  constructor(select) {
    this.select = select;
    this.known = new Map();
    this.order = [];
    this.rows = new Map();
    this.sorted = { column: "", down: false };
    this.filter = h("input", { type: "search", placeholder: "name, host or state", "aria-label":
      "Show processes with this text", input: () => this.show() });
    this.counts = h("div", { class: "counts", "aria-live": "polite" });
    this.body = h("tbody");
    this.headers = COLUMNS.map(([name, , isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : "" },
      h("button", { type: "button", click: () => this.sortBy(name) }, name)));
    this.element = h("div", {},
      h("div", { class: "bar" }, this.filter, this.counts),
      h("div", { class: "card table tall", tabindex: "0", role: "region", "aria-label": "Processes" },
        h("table", { class: "processes" }, h("thead", {}, h("tr", {}, ...this.headers)), this.body)));
  }

  forget() {
    this.known.clear();
  }

  /** Take changed processes and the order of all; return all of them. */
  update({ order, changed }) {
    const now = Date.now();
    for (const process of changed) this.known.set(process.name, { process, at: now });
    this.order = order.filter((name) => this.known.has(name));
    for (const name of [...this.known.keys()]) if (!order.includes(name)) this.known.delete(name);
    this.show();
    return this.order.map((name) => this.known.get(name).process);
  }

  /** Show how uptimes grow, and failures that are not new any more. */
  tick() {
    if (!document.hidden) this.show();
  }

  filterBy(text) {
    this.filter.value = this.filter.value === text ? "" : text;
    this.show();
    this.element.scrollIntoView({ block: "start" });
  }

  sortBy(column) {
    const isSame = this.sorted.column === column;
    this.sorted = isSame && this.sorted.down ? { column: "", down: false } : { column, down: isSame };
    COLUMNS.forEach(([name], i) => {
      const direction = this.sorted.down ? "descending" : "ascending";
      this.headers[i].setAttribute("aria-sort", this.sorted.column === name ? direction : "none");
    });
    this.show();
  }

  show() {
    const all = this.order.map((name) => this.known.get(name)).map(({ process, at }) =>
      ({ ...process, up: process.up === null ? null : process.up + (Date.now() - at) / 1000 }));
    this.showCounts(all);
    const text = this.filter.value.trim().toLowerCase();
    const shown = this.sort(all.filter((p) => !text ||
      `${p.name} ${p.host} ${stateLabel(p.state)} ${p.job}`.toLowerCase().includes(text)));
    const names = new Set(shown.map((p) => p.name));
    for (const [name, row] of this.rows) {
      if (!names.has(name)) {
        row.element.remove();
        this.rows.delete(name);
      }
    }
    shown.forEach((process, i) => {
      const row = this.rows.get(process.name) || this.makeRow(process);
      row.update(process);
      if (this.body.children[i] !== row.element) this.body.insertBefore(row.element, this.body.children[i]);
    });
  }

  sort(processes) {
    const { column, down } = this.sorted;
    const rank = { bad: 0, warn: 1 };
    const value = VALUES[column]
      ? (p) => p[VALUES[column]] ?? -1
      : column ? COLUMNS.find(([name]) => name === column)[1] : (p) => rank[processKind(p)] ?? 2;
    const sorted = processes.map((p, i) => [value(p), i, p]).sort((a, b) =>
      (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0) * (down ? -1 : 1) || a[1] - b[1]);
    return sorted.map(([, , p]) => p);
  }

  showCounts(all) {
    const counts = new Map();
    for (const p of all) {
      const label = hasJustFailed(p) && p.state !== "failed" ? "just failed" : stateLabel(p.state);
      const found = counts.get(label) || { number: 0, kind: processKind(p) };
      counts.set(label, { ...found, number: found.number + 1 });
    }
    const texts = [...counts].map(([label, { number, kind }]) => [`${number} ${label}`, kind]);
    if (this.counted === JSON.stringify(texts)) return;
    this.counted = JSON.stringify(texts);
    this.counts.replaceChildren(...texts.map(([label, kind]) => h("span", { class: `state ${kind}` }, label)));
  }

  makeRow(first) {
    const name = first.name;
    const cells = COLUMNS.map(([, , isNumber], i) => h("td", { class: isNumber ? "number" : i === 8 ? "last" : "" }));
    const open = h("button", { type: "button", class: "link", click: () => this.select(name) }, name);
    cells[0].append(open);
    const state = h("span", { class: "state" });
    cells[2].append(state);
    const row = { element: h("tr", {}, ...cells), update: (process) => {
      const kind = processKind(process);
      if (row.element.className !== kind) row.element.className = kind;
      COLUMNS.forEach(([, text], i) => {
        if (i !== 0) setText(i === 2 ? state : cells[i], text(process));
      });
      if (process.state === "running" && kind === "bad") setText(state, "restarted");
      state.className = `state ${kind}`;
      const { failure } = process;
      row.element.title = failure ? `${failure.why}; ${failure.next}` : "";
    } };
    row.element.dataset.name = name;
    this.rows.set(name, row);
    return row;
  }
}
