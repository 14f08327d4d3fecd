// A table that a click on a heading sorts. Its rows stay while their items change, so that a selection,
// the focus and the place to which it is scrolled do, too.

import { h, setAttribute, setText } from "./dom.js";

export class Table {
  /** `rank` orders the items until a heading is clicked; `decorate` is called with each row and its item. */
  constructor(name, label, { rank = () => 0, decorate = () => {} } = {}) {
    this.rank = rank;
    this.decorate = decorate;
    this.sorted = { name: "", down: false };
    this.rows = new Map(); // by the items' keys
    this.head = h("tr");
    this.body = h("tbody");
    this.element = h("div", { class: "card table", tabindex: "0", role: "region", "aria-label": label },
      h("table", { class: name }, h("thead", {}, this.head), this.body));
  }

  /** Show these items. A column has a name; value(item), by which it is sorted; and if they differ from
   * that, text(item), or show(cell, item), which fills a cell. */
  show(columns, items) {
    const names = JSON.stringify(columns.map((column) => column.name));
    if (names !== this.names) this.setColumns(columns);
    this.names = names;
    this.columns = columns;
    this.items = items;
    this.fill();
  }

  setColumns(columns) {
    this.rows.clear();
    this.body.replaceChildren();
    this.head.replaceChildren(...columns.map(({ name, heading, value, isNumber }) => h("th",
      { scope: "col", class: isNumber ? "number" : "", "data-name": name },
      heading || (value ? h("button", { type: "button", click: () => this.sortBy(name) }, name) : name))));
  }

  /** Sort upwards by a column, then downwards, then by rank again. */
  sortBy(name) {
    const isSame = this.sorted.name === name;
    this.sorted = isSame && this.sorted.down ? { name: "", down: false } : { name, down: isSame };
    this.fill();
  }

  fill() {
    for (const heading of this.head.children) {
      const direction = this.sorted.down ? "descending" : "ascending";
      setAttribute(heading, "aria-sort", heading.dataset.name === this.sorted.name ? direction : "none");
    }
    const keys = new Set(this.items.map((item) => item.key));
    for (const [key, row] of this.rows) {
      if (!keys.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    this.sort().forEach((item, i) => {
      const row = this.rows.get(item.key) || this.makeRow(item.key);
      this.columns.forEach(({ value, text = value, show }, n) => {
        if (show) show(row.cells[n], item);
        else setText(row.cells[n], String(text(item) ?? ""));
      });
      this.decorate(row, item);
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i]);
    });
  }

  makeRow(key) {
    const row = h("tr", { "data-key": key }, ...this.columns.map(({ name, isNumber, className }) =>
      h("td", { class: className || (isNumber ? "number" : ""), "data-name": name })));
    this.rows.set(key, row);
    return row;
  }

  sort() {
    const value = this.columns.find(({ name }) => name === this.sorted.name)?.value || this.rank;
    const sign = this.sorted.down ? -1 : 1;
    return this.items.map((item) => [value(item), item]).sort(([a], [b]) => {
      const [isA, isB] = [a, b].map((each) => each !== null && each !== undefined && each !== "");
      return isA && isB ? sign * compare(a, b) : isB - isA; // what has no value comes last
    }).map(([, item]) => item);
  }
}

/** Compare two values: as numbers if both are. */
function compare(a, b) {
  const difference = Number(a) - Number(b);
  return Number.isNaN(difference) ? String(a).localeCompare(String(b), "en", { numeric: true }) : difference;
}
