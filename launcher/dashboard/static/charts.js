// The charts of the dashboard and of the report page, drawn by uPlot (uplot/).
//
// A chart is a figure: its title, the value under the pointer or else the last one, and the plot. The
// arrow keys move the pointer of a chart that has the focus. The report contains this file as it is,
// so that it imports nothing.

const SIZES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const EVENT_COLOURS = { start: "--soft", checkpoint: "--good", test: "--line", failure: "--bad",
  cut: "--warn", note: "--soft" };
export const MOST_LINES = 8; // of a chart: charts.css has so many colours

/** Return a number for axes and tables: 12.5M, 400k, 0.0008. */
export function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  for (const [size, letter] of SIZES) {
    if (Math.abs(value) >= size * 0.99995) return trim((value / size).toPrecision(digits)) + letter;
  }
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(2);
  return trim(value.toPrecision(digits));
}

function trim(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

/** Return labels of ticks with as many digits as it takes to tell them apart. */
function formatTicks(values) {
  for (let digits = 3; digits < 12; digits++) {
    const labels = values.map((value) => formatNumber(value, digits));
    if (new Set(labels).size === new Set(values).size) return labels;
  }
  return values.map((value) => formatNumber(value, 12));
}

/** Return a time in the unit in which it reads best: 73 s, 22 min, 1.6 h. */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 120) return `${Math.max(seconds, 0).toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

/** Return a time of the clock for an axis with this many seconds between two ticks. */
function formatClock(seconds, step) {
  const at = new Date(seconds * 1000);
  if (step >= 86400) return at.toLocaleDateString([], { month: "short", day: "numeric" });
  const second = step < 60 ? { second: "2-digit" } : {};
  return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false, ...second });
}

/** The options of a chart whose x is training time, in seconds. */
export const OVER_TIME = { xTitle: "", xFormat: formatDuration, xTicks: formatDuration,
  xIncrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    86400, 172800, 432000, 864000] };

function colour(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim();
}

function made(name, className, text = "") {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  return node;
}

/** One chart. `options`: title, unit; share (from 0 to 1); xTitle; xFormat; lines: for several lines
 * a list of {label, colour}, a number below MOST_LINES; events: a function that returns [{x, kind}];
 * height; sync: a name. */
export class Chart {
  constructor(options) {
    this.options = options;
    this.figure = made("figure", "card chart");
    const caption = made("figcaption", "");
    const title = made("span", "title", options.title);
    title.append(made("small", "", options.unit || ""));
    this.value = made("output", "value");
    this.place = made("small", "place");
    this.plotted = made("div", "plot");
    this.plotted.tabIndex = 0;
    this.plotted.setAttribute("role", "img");
    caption.append(title, this.value);
    this.figure.append(caption, this.plotted, this.place);
    this.legend = this.makeLegend(options.lines || []);
    this.figure.append(this.legend);
    this.plotted.addEventListener("keydown", (event) => this.moveByKey(event));
    this.plotted.addEventListener("blur", () => this.uplot?.setCursor({ left: -10, top: -10 }));
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.plotted);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => this.rebuild();
    this.dark.addEventListener("change", this.recolour);
  }

  makeLegend(lines) {
    const legend = made("div", "legend");
    for (const line of lines) {
      const item = made("span", "item", line.label);
      item.append(made("b", ""));
      const mark = made("i", "mark");
      mark.style.background = `var(--line-${line.colour})`;
      item.prepend(mark);
      legend.append(item);
    }
    return legend;
  }

  /** Set the data: x, and for each line {mean, low, high}, the last two for a band around it. */
  setData(x, ...lines) {
    const lists = lines.flatMap(({ mean, low, high }) => [low || mean, high || mean, mean]);
    const same = this.data && this.data.length === lists.length + 1;
    this.data = [x, ...lists];
    if (this.uplot && same) this.uplot.setData(this.data);
    else this.rebuild();
    this.showValue(null);
  }

  destroy() {
    this.resized.disconnect();
    this.dark.removeEventListener("change", this.recolour);
    this.uplot?.destroy();
    this.figure.remove();
  }

  resize() {
    const width = this.plotted.clientWidth;
    if (!width) return;
    if (!this.uplot) this.rebuild();
    else if (width !== this.uplot.width) this.uplot.setSize({ width, height: this.height });
  }

  get height() {
    return this.options.height || 190;
  }

  rebuild() {
    const width = this.plotted.clientWidth;
    this.uplot?.destroy();
    this.uplot = null;
    if (!width || !this.data) return;
    this.uplot = new uPlot({ ...this.plotOptions(), width, height: this.height }, this.data,
      this.plotted);
  }

  plotOptions() {
    const { options, figure } = this;
    const soft = colour(figure, "--soft"), grid = { stroke: colour(figure, "--grid"), width: 1 };
    const axis = { stroke: soft, grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const hidden = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    const drawn = (stroke) => ({ stroke, width: 1.8, spanGaps: true,
      points: { show: (u) => u.data[0].length < 2, size: 6, fill: stroke } });
    const colours = options.lines
      ? options.lines.map((line) => colour(figure, `--line-${line.colour}`))
      : [colour(figure, "--line")];
    return {
      legend: { show: false },
      padding: [8, options.isClock ? 30 : 24, 0, 0],
      scales: {
        x: { time: Boolean(options.isClock), range: (u, low, high) => rangeOfX(low, high, options) },
        y: { range: (u, low, high) => rangeOfY(low, high, options) },
      },
      axes: [
        { ...axis, size: 26, space: 70, ...(options.xIncrs ? { incrs: options.xIncrs } : {}),
          values: (u, ticks, i, space, step) => (options.isClock
            ? ticks.map((at) => formatClock(at, step))
            : options.xTicks ? ticks.map(options.xTicks) : formatTicks(ticks)) },
        { ...axis, size: (u, labels) => 12 + 7 * Math.max(3, ...(labels || []).map((t) => t.length)),
          space: 34, values: (u, ticks) => formatTicks(ticks) },
      ],
      series: [{}, ...colours.flatMap((each) => [hidden, hidden, drawn(each)])],
      bands: colours.map((each, i) => ({ series: [3 * i + 2, 3 * i + 1], fill: `${each}2e` })),
      cursor: {
        y: false,
        drag: { x: true, y: false },
        points: { size: 7, show: (u, i) => (i % 3 ? false : undefined) },
        ...(options.sync ? { sync: { key: options.sync, setSeries: false } } : {}),
      },
      hooks: {
        setCursor: [(u) => this.showValue(u.cursor.idx)],
        drawClear: [(u) => this.drawEvents(u)],
      },
    };
  }

  /** Draw a vertical line for each event. */
  drawEvents(u) {
    const { ctx, bbox } = u, events = this.options.events ? this.options.events() : [];
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const { x, kind } of events) {
      if (x === null || x === undefined || x < u.scales.x.min || x > u.scales.x.max) continue;
      const at = Math.round(u.valToPos(x, "x", true)) + 0.5;
      ctx.strokeStyle = colour(this.figure, EVENT_COLOURS[kind] || "--soft");
      ctx.globalAlpha = kind === "checkpoint" ? 0.45 : 0.9;
      ctx.setLineDash(kind === "failure" || kind === "cut" ? [] : [3, 3]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Show the values at an index of the data, or the last ones. */
  showValue(index) {
    if (!this.data) return;
    const [x, ...lists] = this.data, { options } = this;
    const isLast = index === null || index === undefined;
    const texts = [];
    for (let i = 0; i < lists.length; i += 3) {
      const [low, high, mean] = lists.slice(i, i + 3).map((list) => formatNumber(isLast ? lastOf(list) : list[index], 5));
      texts.push(options.lines && low !== high ? `${mean} (${low} to ${high})` : mean);
    }
    if (!options.lines) this.value.textContent = texts[0];
    texts.slice(0, this.legend.children.length).forEach((text, i) => {
      this.legend.children[i].lastChild.textContent = isLast ? "" : ` ${text}`;
    });
    const at = isLast ? x[x.length - 1] : x[index];
    const place = options.xFormat ? options.xFormat(at) : `${formatNumber(at)} ${options.xTitle || ""}`;
    this.place.textContent = x.length ? (isLast ? `until ${place}` : `at ${place}`) : "no values yet";
    if (isLast) {
      this.plotted.setAttribute("aria-label",
        `${options.title}: ${texts[0]} ${options.unit || ""}, ${this.place.textContent}`);
    }
  }

  moveByKey(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (!this.uplot || !steps) return;
    event.preventDefault();
    const last = this.data[0].length - 1, now = this.uplot.cursor.idx ?? last;
    const index = Math.min(Math.max(now + steps, 0), last);
    this.uplot.setCursor({ left: this.uplot.valToPos(this.data[0][index], "x"), top: 10 });
  }
}

/** Charts that come and go. */
export class ChartGrid {
  /** `draw` is called when a page that was hidden can be seen again. */
  constructor(draw) {
    this.element = made("div", "charts");
    this.charts = new Map(); // by name
    this.onVisible = () => document.visibilityState === "visible" && draw();
    document.addEventListener("visibilitychange", this.onVisible);
  }

  /** Show these charts alone: their names, options, x and lines. */
  show(wanted) {
    for (const [name, chart] of this.charts) {
      const now = wanted.find((each) => each.name === name);
      if (now && JSON.stringify(now.options) === JSON.stringify(chart.options)) continue;
      chart.destroy();
      this.charts.delete(name);
    }
    wanted.forEach(({ name, options, x, lines }, i) => {
      const chart = this.charts.get(name) || new Chart(options);
      this.charts.set(name, chart);
      chart.figure.dataset.key = name;
      if (this.element.children[i] !== chart.figure) {
        this.element.insertBefore(chart.figure, this.element.children[i]);
      }
      chart.setData(x, ...lines);
    });
  }

  redraw() {
    for (const chart of this.charts.values()) chart.uplot?.redraw(false);
  }

  destroy() {
    document.removeEventListener("visibilitychange", this.onVisible);
    for (const chart of this.charts.values()) chart.destroy();
  }
}

function lastOf(list) {
  for (let i = list.length - 1; i >= 0; i--) if (list[i] !== null && list[i] !== undefined) return list[i];
  return null;
}

function rangeOfX(low, high, options) {
  if (low === null || high === null) return [0, 1];
  const begin = options.isClock ? low : Math.min(0, low);
  return high > begin ? [begin, high] : [begin, begin + 1];
}

function rangeOfY(low, high, options) {
  if (options.share) return [0, 1];
  if (low === null || high === null) return [0, 1];
  if (options.fromZero) return [0, high * 1.06 || 1];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}
