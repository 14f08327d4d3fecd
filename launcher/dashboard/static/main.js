// The page: it shows one run, `#/run/KEY`, or all of them side by side, `#/`.

import { fetchJson, h, setText, stateLabel } from "./dom.js";
import { Stream } from "./stream.js";
import { RunPage } from "./run_page.js";
import { RunsPage } from "./runs_page.js";

const main = document.getElementById("main");
const picker = document.getElementById("picker");
const connection = document.getElementById("connection");
let about = null, page = null, stream = null, runs = [], key = null;

function showConnection(state) {
  setText(connection, state === "replaced" ? "the dashboard was started again: open its new address" : state);
  connection.className = `connection ${state}`;
}

function fillPicker() {
  const [own, others] = [false, true].map((elsewhere) => runs.filter((run) => run.elsewhere === elsewhere)
    .map((run) => h("option", { value: run.key }, `${run.name} (${stateLabel(run.state)})`)));
  const options = [h("option", { value: "" }, "all runs, side by side"), ...own,
    ...(others.length ? [h("optgroup", { label: "of other folders" }, ...others)] : [])];
  const texts = options.map((option) => option.textContent).join("\n");
  if (picker.dataset.texts !== texts) picker.replaceChildren(...options);
  picker.dataset.texts = texts;
  picker.value = key;
}

function tell(name, content) {
  if (name === "runs") {
    runs = content;
    fillPicker();
  }
  page.tell(name, content);
  if (name === "runs" && key && !runs.some((run) => run.key === key)) showAll();
}

function showAll() {
  location.hash = "#/";
}

function route() {
  const found = location.hash.match(/^#\/run\/([0-9a-f]+)/);
  const next = found ? found[1] : "";
  if (next === key) return;
  key = next;
  stream?.close();
  page?.destroy();
  page = key ? new RunPage(key, about) : new RunsPage(about);
  main.replaceChildren(page.element);
  fillPicker();
  stream = new Stream(key, { tell, open: () => page.reload(), state: showConnection, gone: showAll });
}

picker.addEventListener("change", () => {
  location.hash = picker.value ? `#/run/${picker.value}` : "#/";
});
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
try {
  about = await fetchJson("about");
  if (!location.hash && about.shown) history.replaceState(null, "", `#/run/${about.shown}`);
  route();
} catch (error) {
  main.replaceChildren(h("p", { class: "card bad" }, `The dashboard does not answer: ${error.message}`));
}
