// The charts of the dashboard and of the report page, drawn by uPlot (uplot/).
//
// A chart is a figure: its title, the value under the pointer or else the last one, and the plot. The
// arrow keys move the pointer of a chart that has the focus. The report contains this file as it is,
// so that it imports nothing.

const SIZES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const EVENT_COLOURS = { start: "--soft", checkpoint: "--good", test: "--line", failure: "--bad",
  cut: "--warn", note: "--soft" };

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
 * a list of {label, colour}; events: a function that returns [{x, kind}]; height; sync: a name. */
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
    if (options.lines) this.figure.append(this.makeLegend(options.lines));
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
      const mark = made("i", "mark");
      mark.style.background = line.colour;
      item.prepend(mark);
      legend.append(item);
    }
    return legend;
  }

  /** Set the data: x and one list for each line, or {mean, low, high} of a single line. */
  setData(x, values) {
    const lists = Array.isArray(values)
      ? values
      : [values.low || values.mean, values.high || values.mean, values.mean];
    const same = this.data && this.data.length === lists.length + 1;
    this.data = [x, ...lists];
    if (this.uplot && same) this.uplot.setData(this.data);
    else this.rebuild();
    this.showValue(null);
  }

  redraw() {
    this.uplot?.redraw(false);
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
    const line = colour(figure, "--line");
    const hidden = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    const drawn = (stroke) => ({ stroke, width: 1.8, spanGaps: true,
      points: { show: (u) => u.data[0].length < 2, size: 6, fill: stroke } });
    const series = options.lines
      ? options.lines.map((each) => drawn(each.colour))
      : [hidden, hidden, drawn(line)];
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
      series: [{}, ...series],
      bands: options.lines ? [] : [{ series: [2, 1], fill: colour(figure, "--band") }],
      cursor: {
        y: false,
        drag: { x: true, y: false },
        points: { size: 7, show: (u, i) => (options.lines || i === 3 ? undefined : false) },
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
    const shown = options.lines ? lists : [lists[2]];
    const texts = shown.map((list) => formatNumber(isLast ? lastOf(list) : list[index], 5));
    this.value.textContent = options.lines && !isLast ? texts.join(" · ") : options.lines ? "" : texts[0];
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
