// Makes the elements of the page. Text from runs becomes text nodes and attributes, never markup.

/** Return an element. Attributes that are functions are listeners; children are nodes or texts. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Return an element of SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set an element's text, if it differs: an unchanged one keeps the user's selection. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set or remove an attribute. */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Return a choice of the x axis of curves, whose value is frames or seconds. */
export function makeAxisChoice(change) {
  return h("select", { "aria-label": "Axis", change },
    h("option", { value: "frames" }, "over frames"), h("option", { value: "seconds" }, "over training time"));
}

/** Return the JSON at an address of this dashboard. */
export async function fetchJson(address, options = {}) {
  const response = await fetch(address, options);
  if (!response.ok) throw new Error((await response.text()).trim() || response.statusText);
  return response.json();
}

const LABELS = { waits: "waiting to restart", away: "unreachable", lost: "supervisor lost",
  stale: "ended by a reboot", elsewhere: "started on another machine",
  unreadable: "cannot be read" };
const GOOD = new Set(["running", "saving"]), BAD = new Set(["failed", "lost", "unreadable"]);
const WARN = new Set(["waits", "away", "stale", "elsewhere"]);
const RECENT_SECONDS = 15;

/** Return a state in words. */
export function stateLabel(state) {
  return LABELS[state] || state;
}

/** Return whether a run of this state has ended. */
export function isOver(state) {
  return ["ended", "failed", "stopped", "stale"].includes(state);
}

/** Return how a state is coloured: good, warn, bad or idle. */
export function stateKind(state) {
  return GOOD.has(state) ? "good" : BAD.has(state) ? "bad" : WARN.has(state) ? "warn" : "idle";
}

/** Show a state in an element, or these words of it. */
export function showState(place, label, kind) {
  if (!place.firstChild) place.append(h("span"));
  setText(place.firstChild, label);
  setAttribute(place.firstChild, "class", `state ${kind}`);
}

/** Return how a process is coloured: one that failed a moment ago is bad, though it runs again. */
export function processKind({ state, failure }) {
  return failure && Date.now() / 1000 - failure.time < RECENT_SECONDS ? "bad" : stateKind(state);
}

/** Return a time of the clock; of another day with the date. */
export function formatTime(seconds) {
  const at = new Date(seconds * 1000);
  const time = at.toLocaleTimeString([], { hour12: false });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
}
