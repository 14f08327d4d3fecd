// The curves of a run over frames or training time, with its events; new rows are appended.
//
// The server keeps a bounded history. When the page has many more points, it fetches that again, so
// that a page that stays open does not grow.

import { ChartGrid, OVER_TIME } from "./charts.js";
import { fetchJson, h, makeAxisChoice } from "./dom.js";

const MOST_POINTS = 1300;

export class Curves {
  constructor(key, panels, events) {
    this.key = key;
    this.panels = panels;
    this.events = events;
    this.axis = makeAxisChoice(() => this.draw());
    this.columns = {};
    this.more = new Set();
    this.known = [];
    this.grid = new ChartGrid(() => this.draw());
    this.moreList = h("div", { class: "more-list" });
    this.details = h("details", { class: "more" }, h("summary", {}, "More curves"), this.moreList);
    this.empty = h("p", { class: "soft" }, "No row of metrics has been written yet.");
    this.element = h("div", {},
      h("div", { class: "bar" }, this.axis, events.makeSwitch()), this.empty, this.grid.element, this.details);
  }

  /** Say which metrics the run has. */
  setKeys(keys) {
    const isNew = keys.some((key) => !this.known.includes(key));
    this.known = keys;
    if (!isNew) return;
    const others = keys.filter((key) => !this.panels.some((panel) => panel.key === key) &&
      key !== "frames" && key !== "seconds");
    this.moreList.replaceChildren(...others.map((key) => {
      const box = h("input", { type: "checkbox", change: () => {
        if (box.checked) this.more.add(key);
        else this.more.delete(key);
        this.reload();
      } });
      box.checked = this.more.has(key);
      return h("label", {}, box, ` ${key}`);
    }));
    this.reload();
  }

  get shown() {
    const more = [...this.more].map((key) => ({ key, title: key, unit: "", share: false }));
    return [...this.panels, ...more].filter((panel) => this.known.includes(panel.key));
  }

  async reload() {
    if (!this.known.length) return;
    const keys = this.shown.map((panel) => panel.key).join(",");
    this.loading = this.loading || fetchJson(`run/${this.key}/history?keys=${encodeURIComponent(keys)}`);
    try {
      this.columns = await this.loading;
    } catch {
      return; // the stream says that the server is away
    } finally {
      this.loading = null;
    }
    this.draw();
  }

  /** Append rows; a resumed run's rows replace earlier ones, which the server knows. */
  add(rows) {
    const { frames, seconds } = this.columns;
    if (!frames || !seconds) return this.reload();
    const last = { frames: frames.mean[frames.mean.length - 1], seconds: seconds.mean[seconds.mean.length - 1] };
    if (rows.some((row) => row.frames < last.frames || row.seconds < last.seconds)) return this.reload();
    if (frames.mean.length > MOST_POINTS) return this.reload();
    for (const row of rows) {
      if (row.frames === last.frames && row.seconds === last.seconds) continue;
      for (const [key, lists] of Object.entries(this.columns)) {
        for (const list of Object.values(lists)) list.push(row[key] ?? null);
      }
    }
    return this.draw();
  }

  draw() {
    if (document.hidden || !this.columns.frames) return;
    this.empty.hidden = true;
    const axis = this.axis.value, options = { sync: "run", xTitle: "frames",
      ...(axis === "seconds" ? OVER_TIME : {}), events: () => this.events.marks(axis) };
    this.grid.show(this.shown.filter(({ key }) => this.columns[key]).map(({ key, title, unit, share }) => ({
      name: key, options: { ...options, title, unit, share }, x: this.columns[axis].mean,
      lines: [this.columns[key]] })));
  }

  destroy() {
    this.grid.destroy();
  }
}
