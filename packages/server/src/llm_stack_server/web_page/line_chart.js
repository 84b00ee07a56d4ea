// Draws values over time as lines or stacked areas, in SVG. Knows nothing of what they mean.

import { element } from "./elements.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT_PX = 140;
const LEFT_PX = 52;
const TOP_PX = 8;
const BOTTOM_PX = 20;
const GAP_S = 4; // a longer wait between two points is left open

/**
 * @typedef {{timeS: number, values: (number|null)[]}} Point One value a series; null where there is none.
 */

export class LineChart {
  #options;
  #svg = svg("svg", { class: "plot", role: "img" });
  #legend = element("div", "legend");
  #points = [];
  #spanS = 120;
  #hoverS = null;

  /**
   * @param {{title: string, series: string[], format: (value: number) => string, stacked?: boolean,
   *   max?: number}} options `max` fixes the upper end.
   * @param {(timeS: number|null) => void} onHover Called with the time under the pointer.
   */
  constructor(options, onHover) {
    this.#options = options;
    this.element = element("figure", "chart", element("figcaption", "", options.title), this.#legend, this.#svg);
    this.#svg.addEventListener("pointermove", (event) => onHover(this.#timeAt(event.offsetX)));
    this.#svg.addEventListener("pointerleave", () => onHover(null));
  }

  /** Show the points of the last `spanS` seconds. */
  show(points, spanS) {
    this.#points = points;
    this.#spanS = spanS;
    this.#draw();
  }

  /** Mark a moment and tell its values; null marks none. */
  hover(timeS) {
    this.#hoverS = timeS;
    this.#draw();
  }

  #draw() {
    const width = this.#svg.clientWidth;
    if (!width) return; // not on the screen
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT_PX}`);
    const endS = this.#points.at(-1)?.timeS ?? 0;
    const shown = this.#points.filter(({ timeS }) => timeS >= endS - this.#spanS);
    const rows = this.#options.stacked ? shown.map(stack) : shown;
    const top = this.#options.max ?? niceTop(rows);
    const place = {
      x: (timeS) => LEFT_PX + ((timeS - endS + this.#spanS) / this.#spanS) * (width - LEFT_PX - 4),
      y: (value) => TOP_PX + (1 - Math.min(1, value / top)) * (HEIGHT_PX - TOP_PX - BOTTOM_PX),
    };
    const marked = this.#hoverS === null ? shown.at(-1) : nearest(shown, this.#hoverS);
    this.#svg.replaceChildren(
      ...this.#axes(width, top, place),
      ...this.#options.series.flatMap((_, index) => this.#line(rows, index, place)),
    );
    if (this.#hoverS !== null && marked) {
      const x = place.x(marked.timeS);
      this.#svg.append(svg("line", { class: "marker", x1: x, x2: x, y1: TOP_PX, y2: HEIGHT_PX - BOTTOM_PX }));
    }
    this.#tell(marked);
  }

  #axes(width, top, place) {
    const made = [];
    for (const share of [0, 0.5, 1]) {
      const y = place.y(share * top);
      made.push(svg("line", { class: "rule", x1: LEFT_PX, x2: width - 4, y1: y, y2: y }));
      made.push(label(LEFT_PX - 8, y + 4, "end", this.#options.format(share * top)));
    }
    const minutes = this.#spanS / 60;
    made.push(label(LEFT_PX, HEIGHT_PX - 4, "start", `${minutes} min ago`));
    made.push(label(width - 4, HEIGHT_PX - 4, "end", "now"));
    return made;
  }

  #line(rows, index, place) {
    const runs = runsOf(rows, index);
    const made = [];
    for (const run of runs) {
      const path = run.map(({ timeS, values }) => `${place.x(timeS).toFixed(1)},${place.y(values[index]).toFixed(1)}`);
      if (this.#options.stacked || this.#options.series.length === 1) {
        const floor = [...run].reverse().map(({ timeS, values }) => {
          const below = this.#options.stacked && index > 0 ? values[index - 1] : 0;
          return `${place.x(timeS).toFixed(1)},${place.y(below).toFixed(1)}`;
        });
        made.push(svg("path", { class: `area s${index}`, d: `M${[...path, ...floor].join("L")}Z` }));
      }
      // A lone value is a dot: a line of one point shows nothing.
      const d = path.length > 1 ? `M${path.join("L")}` : `M${path[0]}h0.01`;
      made.push(svg("path", { class: `line s${index}`, d }));
    }
    return made;
  }

  #tell(point) {
    const values = point?.values ?? this.#options.series.map(() => null);
    const texts = values.map((value) => (value === null ? "–" : this.#options.format(value)));
    if (this.#legend.children.length !== values.length) {
      const entries = this.#options.series.map((name, index) =>
        element("span", `entry s${index}`, element("i"), element("span", "", name), element("b")),
      );
      this.#legend.replaceChildren(...entries);
    }
    texts.forEach((text, index) => (this.#legend.children[index].lastChild.textContent = text));
    const told = this.#options.series.map((name, index) => `${name} ${texts[index]}`).join(", ");
    this.#svg.setAttribute("aria-label", `${this.#options.title}: ${told}`);
  }

  #timeAt(x) {
    const endS = this.#points.at(-1)?.timeS ?? 0;
    const share = (x - LEFT_PX) / (this.#svg.clientWidth - LEFT_PX - 4);
    return endS - this.#spanS + Math.max(0, Math.min(1, share)) * this.#spanS;
  }
}

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function label(x, y, anchor, text) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

/** The points of a series as runs without a gap. */
function runsOf(rows, index) {
  const runs = [];
  let last = null;
  for (const row of rows) {
    if (row.values[index] === null) {
      last = null;
      continue;
    }
    if (last === null || row.timeS - last > GAP_S) runs.push([]);
    runs.at(-1).push(row);
    last = row.timeS;
  }
  return runs;
}

function stack({ timeS, values }) {
  let sum = 0;
  return { timeS, values: values.map((value) => (value === null ? null : (sum += value))) };
}

/** The least of 1, 2, 4, 6, 8, 10, 20, ... that holds all values; 1 where all are 0. */
function niceTop(rows) {
  const most = Math.max(0, ...rows.flatMap(({ values }) => values));
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((top) => top >= most * 1.02) ?? 20 * power;
}

function nearest(points, timeS) {
  let best = null;
  for (const point of points) {
    if (!best || Math.abs(point.timeS - timeS) < Math.abs(best.timeS - timeS)) best = point;
  }
  return best;
}
