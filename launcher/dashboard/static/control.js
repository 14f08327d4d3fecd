// The buttons of a dashboard that was started with --dashboard_control.

import { fetchJson, h } from "./dom.js";

const ACTIONS = [
  ["save", "Save now", "Save a checkpoint of this run now?"],
  ["apply", "Apply CSV", "Add and remove actors so that they match the changed CSV?"],
  ["stop", "Stop", "Save and stop this run, with all of its processes?"],
];

export class Control {
  constructor(key) {
    this.key = key;
    this.question = h("p");
    this.yes = h("button", { type: "submit", value: "yes", class: "primary" }, "Yes");
    this.dialog = h("dialog", {}, h("form", { method: "dialog" }, this.question,
      h("div", { class: "bar" }, this.yes, h("button", { type: "submit", value: "no" }, "No"))));
    this.dialog.addEventListener("close", () => this.dialog.returnValue === "yes" && this.act());
    this.buttons = ACTIONS.map(([name, label, question]) => h("button", { type: "button",
      class: name === "stop" ? "danger" : "", click: () => this.ask(name, question) }, label));
    this.printed = h("pre", { class: "printed", "aria-live": "polite" });
    this.printed.hidden = true;
    this.element = h("div", { class: "control" }, h("div", { class: "bar" }, ...this.buttons), this.printed, this.dialog);
  }

  update(status) {
    this.isLive = !["ended", "failed", "stopped", "lost", "stale", "elsewhere"].includes(status.state);
    if (!this.busy) for (const button of this.buttons) button.disabled = !this.isLive;
  }

  ask(action, question) {
    this.action = action;
    this.question.textContent = question;
    this.dialog.returnValue = "";
    this.dialog.showModal();
  }

  async act() {
    this.busy = true;
    for (const button of this.buttons) button.disabled = true;
    this.show("...");
    try {
      const { code, printed } = await fetchJson(`run/${this.key}/control/${this.action}`, { method: "POST" });
      this.show(printed.trim() || (code ? `it ended with code ${code}` : "done"));
    } catch (error) {
      this.show(error.message);
    }
    this.busy = false;
    for (const button of this.buttons) button.disabled = !this.isLive;
  }

  show(text) {
    this.printed.hidden = false;
    this.printed.textContent = text;
  }
}
