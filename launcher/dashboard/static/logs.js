// The log of one process: its end, which is followed, earlier parts, and a search.

import { fetchJson, h } from "./dom.js";

const FOLLOW_MS = 1500, MOST_LINES = 3000;
const COLOURS = /\u001b\[[0-9;]*m/g;

export class Logs {
  constructor(key) {
    this.key = key;
    this.name = "";
    this.known = [];
    this.picker = h("select", { "aria-label": "Process", change: () => this.open(this.picker.value, false) });
    this.search = h("input", { type: "search", placeholder: "search the log", "aria-label": "Search the log" });
    this.follow = h("input", { type: "checkbox", checked: true });
    this.follow.checked = true;
    this.earlier = h("button", { type: "button", click: () => this.readEarlier() }, "Earlier lines");
    this.note = h("p", { class: "soft", "aria-live": "polite" });
    this.list = h("div", { class: "log", role: "log", tabindex: "0", "aria-label": "Log", "aria-live": "off" });
    this.form = h("form", { class: "bar", submit: (event) => { event.preventDefault(); this.find(); } },
      this.picker, this.search, h("button", { type: "submit" }, "Search"),
      h("label", {}, this.follow, " follow"), this.earlier);
    this.element = h("div", {}, this.form, this.note, this.list);
    this.search.addEventListener("search", () => !this.search.value && this.open(this.name, false));
    this.timer = setInterval(() => this.readNew(), FOLLOW_MS);
  }

  async reload() {
    try {
      this.fill(await fetchJson(`run/${this.key}/logs`));
    } catch {
      return; // the stream says that the server is away
    }
    if (!this.name && this.known.length) {
      const first = ["learners", "learner"].find((name) => this.known.includes(name)) || this.known[0];
      this.open(first, false);
    }
    if (!this.known.length) this.note.textContent = "There is no log on this machine yet.";
  }

  /** Fetch the list of logs again if a process is new. */
  setNames(names) {
    const text = names.join("\n");
    if (text === this.names) return;
    this.names = text;
    this.reload();
  }

  fill(names) {
    if (names.join("\n") === this.known.join("\n")) return;
    this.known = names;
    this.picker.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    this.picker.value = this.name;
  }

  async open(name, moves = true) {
    this.name = name;
    this.picker.value = name;
    this.search.value = "";
    this.found = false;
    this.place = null;
    if (moves) {
      this.element.parentNode.scrollIntoView({ block: "start" });
      this.list.focus({ preventScroll: true });
    }
    await this.read({}, (part) => {
      this.list.replaceChildren(...part.lines.map(makeLine));
      this.place = part;
      this.note.textContent = part.lines.length ? "" : "The log is empty.";
      this.list.scrollTop = this.list.scrollHeight;
    });
  }

  async read(query, use) {
    const name = this.name;
    const address = `run/${this.key}/log?${new URLSearchParams({ name, ...query })}`;
    try {
      const part = await fetchJson(address);
      if (name === this.name) use(part);
    } catch (error) {
      if (name === this.name) this.note.textContent = error.message;
    }
    this.earlier.disabled = !this.place || this.place.begin === 0;
  }

  async readNew() {
    const isDue = this.follow.checked && this.place && !document.hidden && !this.busy && !this.found;
    if (!isDue) return;
    this.busy = true;
    await this.read({ after: this.place.end }, (part) => {
      if (part.inode !== this.place.inode || part.size < this.place.end) {
        this.open(this.name, false); // it was rotated
        return;
      }
      this.place = { ...this.place, end: part.end, size: part.size };
      if (!part.lines.length) return;
      const isAtEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
      this.list.append(...part.lines.map(makeLine));
      while (this.list.children.length > MOST_LINES) {
        this.list.firstChild.remove();
        this.place.begin = Number(this.list.firstChild.dataset.at);
      }
      if (isAtEnd) this.list.scrollTop = this.list.scrollHeight;
    });
    this.busy = false;
  }

  async readEarlier() {
    if (!this.place) return;
    this.follow.checked = false;
    await this.read({ before: this.place.begin }, (part) => {
      const height = this.list.scrollHeight;
      this.list.prepend(...part.lines.map(makeLine));
      this.place = { ...this.place, begin: part.begin };
      while (this.list.children.length > MOST_LINES) {
        this.place.end = Number(this.list.lastChild.dataset.at); // to follow reads on from there
        this.list.lastChild.remove();
      }
      this.list.scrollTop = this.list.scrollHeight - height;
    });
  }

  async find() {
    const text = this.search.value;
    this.found = Boolean(text);
    if (!text) return this.open(this.name, false);
    await this.read({ search: text }, (found) => {
      this.place = null;
      this.list.replaceChildren(...found.lines.map((line) => {
        const node = makeLine(line);
        mark(node, text);
        return node;
      }));
      const part = found.searched < found.size ? ` in its last ${(found.searched / 2 ** 20).toFixed(0)} MiB` : "";
      this.note.textContent = `${found.lines.length} lines with “${text}”${part}`;
    });
    return null;
  }

  destroy() {
    clearInterval(this.timer);
  }
}

function makeLine({ at, text }) {
  const line = h("div", { "data-at": at }, text.replace(COLOURS, ""));
  if (/\b(error|failed|traceback|fatal|killed)\b/i.test(text)) line.className = "bad";
  else if (/\bwarning\b/i.test(text)) line.className = "warn";
  return line;
}

/** Mark where a line contains the text. */
function mark(node, text) {
  const whole = node.textContent, at = whole.toLowerCase().indexOf(text.toLowerCase());
  if (at < 0) return;
  node.replaceChildren(whole.slice(0, at), h("mark", {}, whole.slice(at, at + text.length)),
    whole.slice(at + text.length));
}
