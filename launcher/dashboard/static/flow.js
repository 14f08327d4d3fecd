// The picture of a cluster: what flows from actors to learners and back, where it is held up, and the
// processes of each host.

import { formatNumber } from "./charts.js";
import { h, isOver, processKind, setAttribute, setText, stateKind, stateLabel } from "./dom.js";

// Which part of the picture the verdict's first words name.
const HELD_UP = [[/^bottleneck: (actors|cores)/, "actors"], [/^bottleneck: source/, "queue"],
  [/^bottleneck: network/, "link"], [/^bottleneck: (learner|inference|all-reduce)/, "learners"]];

export class Flow {
  /** `choose` is called with the host that the user chooses. */
  constructor(choose) {
    this.choose = choose;
    this.stages = { actors: makeStage("Actors"), queue: makeStage("Queue"), learners: makeStage("Learners") };
    this.links = { unrolls: makeLink("unrolls"), batches: makeLink("batches") };
    this.back = h("div", { class: "back" }, h("span", { class: "arrow" }), h("span", { class: "label" }));
    this.hosts = h("div", { class: "hosts" });
    this.cards = new Map();
    const { actors, queue, learners } = this.stages;
    this.element = h("div", { class: "flow" },
      h("div", { class: "stages" }, actors.element, this.links.unrolls.element, queue.element,
        this.links.batches.element, learners.element), this.back, this.hosts);
  }

  update({ status }, row, processes) {
    const verdict = status.verdict || row.verdict || "";
    const held = HELD_UP.find(([words]) => words.test(verdict))?.[1];
    for (const [name, stage] of Object.entries(this.stages)) stage.mark(held === name);
    this.links.unrolls.mark(held === "link");
    const actors = processes.filter((p) => p.job === "actor");
    const hosts = new Set(actors.map((p) => p.host)).size;
    this.stages.actors.show(describeActors(status.state, actors, row),
      hosts ? `on ${hosts} host${hosts === 1 ? "" : "s"}` : "", [["choose actions", row["actor/acting_share"], "a"],
      ["step environments", row["actor/stepping_share"], "b"], ["wait to send", row["actor/waiting_share"], "c"],
      ["wait for a policy", row["actor/policy_wait_share"], "d"]]);
    this.stages.queue.show(row.queue_fill == null ? "–" : `${(row.queue_fill * 100).toFixed(0)}% full`,
      "unrolls that wait", [["full", row.queue_fill, "a"]]);
    const learners = Object.keys(row).filter((key) => key.startsWith("steps/learner")).length || 1;
    this.stages.learners.show(`${learners} learner${learners === 1 ? "" : "s"}`,
      row.updates_per_second == null ? "" : `${formatNumber(row.updates_per_second)} updates/s`,
      [["train", row.train_share, "a"], ["wait for unrolls", row.wait_share, "c"],
        ["all-reduce", row.exchange_share, "b"], ["other", row.rest_share, "d"]]);
    this.links.unrolls.show(row.frames_per_second == null ? "" : `${formatNumber(row.frames_per_second)} frames/s`);
    this.links.batches.show("");
    setText(this.back.lastChild, row.policy_lag == null ? "parameters" :
      `parameters; the policy that plays is ${row.policy_lag.toFixed(1)} updates old`);
    this.showHosts(processes);
  }

  showHosts(processes) {
    const byHost = new Map();
    for (const process of processes) {
      if (!byHost.has(process.host)) byHost.set(process.host, []);
      byHost.get(process.host).push(process);
    }
    for (const [host, card] of this.cards) {
      if (!byHost.has(host)) {
        card.element.remove();
        this.cards.delete(host);
      }
    }
    for (const [host, found] of byHost) {
      let card = this.cards.get(host);
      if (!card) {
        card = makeHost(host, this.choose);
        this.cards.set(host, card);
        this.hosts.append(card.element);
      }
      card.update(found);
    }
  }
}

/** Return how many actors there are: by their states, as the other parts of the page count them, or by
 * the last row of a run of which only the folder is known. */
function describeActors(state, actors, row) {
  if (isOver(state)) return `${actors.length || row.actors || 0} actors`;
  return actors.length ? `${countRunning(actors)} of ${actors.length} running` : `${row.actors ?? 0} connected`;
}

function countRunning(processes) {
  return processes.filter((process) => stateKind(process.state) === "good").length;
}

function makeStage(title) {
  const figure = h("b"), note = h("span", { class: "soft" }), bar = h("div", { class: "shares" });
  const legend = h("div", { class: "share-legend" }), badge = h("span", { class: "badge" }, "bottleneck");
  const element = h("div", { class: "stage card" }, h("div", { class: "stage-title" }, h("h3", {}, title), badge),
    figure, note, bar, legend);
  return {
    element,
    mark: (isHeld) => element.classList.toggle("held", isHeld),
    show(text, more, shares) {
      setText(figure, text);
      setText(note, more);
      const known = shares.filter(([, value]) => value >= 0.005); // not where it is unknown
      bar.replaceChildren(...known.map(([, , kind]) => h("i", { class: `share ${kind}` })));
      known.forEach(([, value], i) => { bar.children[i].style.width = `${(Math.min(value, 1) * 100).toFixed(1)}%`; });
      legend.replaceChildren(...known.map(([label, value, kind]) =>
        h("span", {}, h("i", { class: `share ${kind}` }), `${label} ${(value * 100).toFixed(0)}%`)));
    },
  };
}

function makeLink(title) {
  const label = h("span", { class: "soft" }), name = h("span", {}, title);
  const element = h("div", { class: "flow-link" }, name, h("span", { class: "arrow" }), label);
  return { element, show: (text) => setText(label, text), mark: (isHeld) => element.classList.toggle("held", isHeld) };
}

function makeHost(host, choose) {
  const name = h("button", { type: "button", class: "link", title: "show its processes",
    click: () => choose(host) }, host);
  const facts = h("span", { class: "soft" }), cells = h("div", { class: "cells", "aria-hidden": "true" });
  const element = h("div", { class: "host card" }, h("div", { class: "host-title" }, name, facts), cells);
  return {
    element,
    update(processes) {
      const cores = processes.reduce((sum, p) => sum + (p.cpu || 0) / 100, 0);
      const memory = processes.reduce((sum, p) => sum + (p.memory || 0), 0) / 1024;
      const missing = processes.length - countRunning(processes);
      setText(facts, `${processes.length} processes · ${cores.toFixed(1)} cores · ${memory.toFixed(1)} GiB` +
        (missing ? ` · ${missing} not running` : ""));
      while (cells.children.length > processes.length) cells.lastChild.remove();
      while (cells.children.length < processes.length) cells.append(h("i"));
      processes.forEach((process, i) => {
        const cell = cells.children[i];
        cell.className = `cell ${processKind(process)} ${process.job === "learner" ? "learner" : ""}`;
        setAttribute(cell, "title", `${process.name}: ${stateLabel(process.state)}`);
      });
    },
  };
}
