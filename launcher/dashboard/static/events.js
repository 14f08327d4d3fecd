// The events of a run: a list of them, the newest first, and marks for the curves.

import { formatNumber } from "./charts.js";
import { formatTime, h } from "./dom.js";

const KINDS = [["failure", "failures"], ["cut", "cut connections"], ["start", "starts"],
  ["checkpoint", "checkpoints"], ["test", "tests"], ["note", "controller"]];

export class Events {
  /** `redraw` is called when the marks on the curves have changed. */
  constructor(redraw) {
    this.redraw = redraw;
    this.events = [];
    this.hidden = new Set(["note"]);
    this.list = h("ol", { class: "events card", tabindex: "0", "aria-label": "Events" });
    this.empty = h("p", { class: "soft" }, "Nothing has happened yet.");
    this.element = h("div", {}, this.empty, this.list);
    this.list.hidden = true;
  }

  /** Return boxes that choose which kinds are shown. */
  makeSwitch() {
    return h("div", { class: "kinds", role: "group", "aria-label": "Events on the curves" }, ...KINDS.map(([kind, label]) => {
      const box = h("input", { type: "checkbox", change: () => {
        if (box.checked) this.hidden.delete(kind);
        else this.hidden.add(kind);
        this.redraw();
      } });
      box.checked = !this.hidden.has(kind);
      return h("label", { class: `kind ${kind}` }, box, ` ${label}`);
    }));
  }

  update(events) {
    this.events = events;
    this.empty.hidden = events.length > 0;
    this.list.hidden = !events.length;
    this.list.replaceChildren(...events.slice(-150).reverse().map((event) => h("li", { class: event.kind },
      h("time", {}, formatTime(event.time)), h("span", { class: "text" }, event.text),
      h("span", { class: "soft" }, event.frames === null ? "" : `${formatNumber(event.frames)} frames`))));
    this.redraw();
  }

  /** Return where the shown events lie on an axis: frames, seconds (of training) or time. */
  marks(axis) {
    return this.events.filter((event) => !this.hidden.has(event.kind))
      .map((event) => ({ x: event[axis], kind: event.kind }));
  }
}
