// The page of one run: its headline, and a part for each kind of thing that is shown of it.

import { formatDuration, formatNumber } from "./charts.js";
import { Control } from "./control.js";
import { Curves } from "./curves.js";
import { h, isOver, setText, showState, stateKind, stateLabel } from "./dom.js";
import { Events } from "./events.js";
import { Flow } from "./flow.js";
import { Hosts } from "./hosts.js";
import { Logs } from "./logs.js";
import { Processes } from "./processes.js";
import { Videos } from "./videos.js";

const PARTS = [["cluster", "Cluster"], ["curves", "Curves"], ["processes", "Processes"], ["logs", "Log"],
  ["hosts", "Hosts"], ["events", "Events"], ["videos", "Videos"]];

export class RunPage {
  constructor(key, about) {
    this.key = key;
    this.about = null;
    this.processes = [];
    this.title = h("h1", {}, "Run");
    this.state = h("span");
    this.facts = h("p", { class: "soft facts" });
    this.verdict = h("p", { class: "verdict" });
    this.notes = h("div", { class: "notes" });
    this.tiles = h("div", { class: "tiles" });
    this.events = new Events(() => [this.parts.curves, this.parts.hosts].forEach((part) => part.grid.redraw()));
    this.logs = new Logs(key);
    const select = (name) => this.logs.open(name);
    this.parts = {
      cluster: new Flow((host) => this.parts.processes.filterBy(host)),
      curves: new Curves(key, about.panels, this.events),
      processes: new Processes(select),
      logs: this.logs,
      hosts: new Hosts(key, this.events),
      events: this.events,
      videos: new Videos(key),
    };
    this.control = about.control ? new Control(key) : null;
    this.links = h("nav", { class: "parts", "aria-label": "Parts of this page" }, ...PARTS.map(([name, label]) =>
      h("button", { type: "button", click: () => this.show(name) }, label)));
    this.element = h("div", { class: "page run" },
      h("div", { class: "headline" }, h("div", { class: "title" }, this.title, this.state), this.control?.element),
      this.facts, this.verdict, this.notes, this.tiles, this.links,
      ...PARTS.map(([name, label]) => {
        const heading = h("h2", { id: `part-${name}`, tabindex: "-1" }, label);
        return h("section", { class: `part part-${name}`, "aria-labelledby": `part-${name}` }, heading,
          this.parts[name].element);
      }));
    this.timer = setInterval(() => this.parts.processes.tick(), 1000);
  }

  show(name) {
    const heading = this.element.querySelector(`#part-${name}`);
    heading.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    heading.focus({ preventScroll: true });
  }

  /** Fetch what a new connection is not told. */
  reload() {
    this.parts.processes.forget();
    this.parts.curves.reload();
    this.parts.hosts.reload();
    this.logs.reload();
  }

  tell(name, content) {
    if (name === "about") this.showAbout(content);
    if (name === "rows") {
      this.row = content[content.length - 1];
      this.parts.curves.add(content);
      this.showTiles();
    }
    if (name === "events") {
      this.events.update(content.events);
      this.parts.videos.update(content.videos, content.videos_elsewhere);
    }
    if (name === "hosts") this.parts.hosts.add(content);
    if (name === "processes") {
      this.processes = this.parts.processes.update(content);
      this.logs.setNames(this.processes.map((process) => process.name));
    }
    if (this.about && name !== "beat" && name !== "runs") {
      this.parts.cluster.update(this.about, this.row || {}, this.processes);
    }
  }

  showAbout(content) {
    this.about = content;
    this.row = content.row;
    const { status, about } = content;
    setText(this.title, about.level_name ? `${about.level_name} · ${status.name}` : status.name);
    document.title = `${status.name}: ${stateLabel(status.state)}`;
    showState(this.state, stateLabel(status.state), stateKind(status.state));
    const started = status.seconds ? `started ${formatDuration(status.seconds)} ago` : "";
    setText(this.facts, [about.algorithm, about.agent_name, `seed ${about.seed ?? "–"}`, started,
      status.logdir].filter(Boolean).join(" · "));
    const verdict = status.verdict || content.row.verdict || "";
    setText(this.verdict, verdict);
    this.verdict.classList.toggle("is-bottleneck", verdict.startsWith("bottleneck"));
    const notes = [status.controller?.text, status.failure];
    this.notes.replaceChildren(...notes.filter(Boolean).map((text) => h("p", { class: "soft" }, text)));
    this.showTiles();
    this.parts.curves.setKeys(content.keys);
    this.parts.videos.setFolder(status.logdir);
    this.control?.update(status);
  }

  showTiles() {
    const row = this.row || {}, over = Boolean(this.about) && isOver(this.about.status.state);
    const rate = (now, total) => (over && row.seconds ? total / row.seconds : now);
    const mean = over ? ", on average" : "";
    const tiles = [
      ["mean return", row.episode_return == null ? "–" : row.episode_return.toFixed(2),
        row.games == null || row.games >= 100 ? "last 100 games" : `last ${row.games} games`],
      ["environment frames", formatNumber(row.frames), `${formatDuration(row.seconds)} of training`],
      ["throughput", formatNumber(rate(row.frames_per_second, row.frames)), `frames/s${mean}`],
      ["policy lag", row.policy_lag == null ? "–" : row.policy_lag.toFixed(1), "updates"],
      ["loss", formatNumber(row["loss_per_step/total"]), "per step"],
      ["updates", formatNumber(row.updates), row.updates_per_second == null ? "" :
        `${formatNumber(rate(row.updates_per_second, row.updates))}/s${mean}`],
    ];
    if (this.tiles.children.length !== tiles.length) {
      this.tiles.replaceChildren(...tiles.map(() => h("div", { class: "card tile" }, h("span"), h("b"), h("small"))));
    }
    tiles.forEach(([label, value, unit], i) => {
      const [name, figure, small] = this.tiles.children[i].children;
      setText(name, label);
      setText(figure, value);
      setText(small, unit);
    });
  }

  destroy() {
    clearInterval(this.timer);
    for (const part of Object.values(this.parts)) part.destroy?.();
  }
}
