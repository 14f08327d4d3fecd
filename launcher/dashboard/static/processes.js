// The live table of a run's processes, as `--status` shows it; failures come first.

import { formatDuration } from "./charts.js";
import { h, processKind, setAttribute, showState, stateKind, stateLabel } from "./dom.js";
import { Table } from "./table.js";

const RANKS = { bad: 0, warn: 1 };

export class Processes {
  /** `select` is called with the name of the process whose log the user wants to read. */
  constructor(select) {
    this.known = new Map();
    this.order = [];
    this.columns = makeColumns(select);
    this.table = new Table("processes", "Processes", { rank: (p) => RANKS[processKind(p)] ?? 2, decorate });
    this.table.element.classList.add("tall");
    this.filter = h("input", { type: "search", placeholder: "name, host or state", "aria-label":
      "Show processes with this text", input: () => this.show() });
    this.counts = h("div", { class: "counts", "aria-live": "polite" });
    this.element = h("div", {}, h("div", { class: "bar" }, this.filter, this.counts), this.table.element);
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

  show() {
    const all = this.order.map((name) => this.known.get(name)).map(({ process, at }) => ({ ...process,
      key: process.name, up: process.up === null ? null : process.up + (Date.now() - at) / 1000 }));
    this.showCounts(all);
    const text = this.filter.value.trim().toLowerCase();
    this.table.show(this.columns, all.filter((p) => !text ||
      `${p.name} ${p.host} ${stateLabel(p.state)} ${p.job}`.toLowerCase().includes(text)));
  }

  showCounts(all) {
    const counts = new Map();
    for (const { state } of all) counts.set(state, (counts.get(state) || 0) + 1);
    const texts = JSON.stringify([...counts]);
    if (this.counted === texts) return;
    this.counted = texts;
    this.counts.replaceChildren(...[...counts].map(([state, number]) =>
      h("span", { class: `state ${stateKind(state)}` }, `${number} ${stateLabel(state)}`)));
  }
}

function makeColumns(select) {
  const number = (name, value, text) => ({ name, value, isNumber: true, text: (p) => (value(p) === null ? "" : text(value(p))) });
  return [
    { name: "process", value: (p) => p.name, show: (cell, { name }) => cell.firstChild ||
      cell.append(h("button", { type: "button", class: "link", click: () => select(name) }, name)) },
    { name: "host", value: (p) => p.host },
    { name: "state", value: (p) => stateLabel(p.state), show: (cell, process) => {
      const kind = processKind(process), isBack = process.state === "running" && kind === "bad";
      showState(cell, isBack ? "running again" : stateLabel(process.state), kind);
    } },
    number("uptime", (p) => p.up, formatDuration),
    number("frames/s", (p) => p.frames_per_second, (rate) => rate.toFixed(0)),
    number("CPU", (p) => p.cpu, (percent) => `${percent}%`),
    number("memory", (p) => p.memory, (mib) => `${mib.toLocaleString("en")} MiB`),
    number("restarts", (p) => p.restarts, String),
    { name: "last log line", value: (p) => p.last.replace(/\u001b\[[0-9;]*m/g, ""), className: "last" },
  ];
}

function decorate(row, process) {
  const { name, failure } = process;
  setAttribute(row, "class", processKind(process));
  setAttribute(row, "data-name", name);
  setAttribute(row, "title", failure ? `${failure.why}; ${failure.next}` : "");
}
