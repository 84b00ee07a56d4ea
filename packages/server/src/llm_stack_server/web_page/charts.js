// The charts: asks for metrics each second while the page can be seen, and shows what the last seconds brought.

import { element } from "./elements.js";
import { LineChart } from "./line_chart.js";
import { increases, parseMetrics, quantile, total } from "./metrics.js";
import { ServerFault } from "./server.js";

const INTERVAL_MS = 1000;
const WINDOW_S = 10; // rates and quantiles are taken over so long
const LONGEST_STEP_S = 5; // after a longer pause (a hidden tab, a server that was gone) counting begins anew
const KEPT_S = 900;
const PREFIX = "llm_stack_";
// Probes and the page's own questions would hide the traffic.
const OWN_ROUTES = /^\/($|page\/|metrics$|health|version$)/;

const count = (value) => (value < 10 && value % 1 ? value.toFixed(1) : compact(value));
const percent = (value) => `${value.toFixed(value < 10 && value % 1 ? 1 : 0)} %`;

const CHARTS = [
  {
    title: "Output tokens per second",
    series: ["output"],
    format: count,
    read: (reading) => [reading.rate("generation_tokens_total")],
  },
  {
    title: "Prompt tokens per second",
    series: ["prompt"],
    format: count,
    read: (reading) => [reading.rate("prompt_tokens_total")],
  },
  {
    title: "Requests",
    series: ["running", "waiting"],
    format: count,
    read: (reading) => [reading.gauge("requests_running"), reading.waiting()],
  },
  {
    title: "Time to first token",
    series: ["p50", "p99"],
    format: seconds,
    read: (reading) => reading.quantiles("time_to_first_token_seconds"),
  },
  {
    title: "Time between tokens",
    series: ["p50", "p99"],
    format: seconds,
    read: (reading) => reading.quantiles("inter_token_latency_seconds"),
  },
  {
    title: "Time of a request",
    series: ["p50", "p99"],
    format: seconds,
    read: (reading) => reading.quantiles("request_latency_seconds"),
  },
  {
    title: "KV cache",
    series: ["in use", "kept for reuse"],
    format: percent,
    stacked: true,
    max: 100,
    read: (reading) => reading.cacheShares(),
  },
  {
    title: "Prefix cache hits",
    series: ["of prompt tokens"],
    format: percent,
    max: 100,
    read: (reading) => [reading.hitShare()],
  },
  {
    title: "Answers per second",
    series: ["2xx", "4xx", "5xx"],
    format: count,
    read: (reading) => ["2", "4", "5"].map((digit) => reading.answers(digit)),
  },
];

const TILES = [
  ["Output", (reading) => told(reading.rate("generation_tokens_total"), (value) => `${count(value)} tok/s`)],
  ["Prompt", (reading) => told(reading.rate("prompt_tokens_total"), (value) => `${count(value)} tok/s`)],
  ["Running", (reading) => told(reading.gauge("requests_running"), count)],
  ["Waiting", (reading) => told(reading.waiting(), count)],
  ["TTFT p50", (reading) => told(reading.quantiles("time_to_first_token_seconds")[0], seconds)],
  ["ITL p50", (reading) => told(reading.quantiles("inter_token_latency_seconds")[0], seconds)],
  ["KV in use", (reading) => told(reading.cacheShares()[0], percent)],
  ["Preemptions", (reading) => told(reading.gauge("preemptions_total"), count)],
  ["Engine deaths", (reading) => told(reading.gauge("core_deaths_total"), count)],
];

export class Charts {
  #server;
  #charts;
  #tiles = [];
  #isStarted = false;
  #before = null;
  #beforeS = 0;
  #steps = [];
  #points = CHARTS.map(() => []);

  /** @param {import("./server.js").Server} server */
  constructor(server) {
    this.#server = server;
    const hover = (timeS) => this.#charts.forEach((chart) => chart.hover(timeS));
    this.#charts = CHARTS.map((options) => new LineChart(options, hover));
    document.getElementById("grid").append(...this.#charts.map((chart) => chart.element));
    for (const [name] of TILES) {
      const value = element("dd", "", "–");
      this.#tiles.push(value);
      document.getElementById("tiles").append(element("div", "", element("dt", "", name), value));
    }
    document.getElementById("span").addEventListener("change", () => this.#draw());
    addEventListener("resize", () => this.#draw());
  }

  /** The view came up: ask from now on, also while the chat is shown, so that nothing is missed. */
  show() {
    if (!this.#isStarted) this.#poll();
    this.#isStarted = true;
    this.#draw();
  }

  /** Count anew, under another key. */
  restart() {
    this.#before = null;
  }

  async #poll() {
    const startMs = performance.now();
    if (!document.hidden) await this.#read();
    setTimeout(() => this.#poll(), Math.max(100, INTERVAL_MS - (performance.now() - startMs)));
  }

  async #read() {
    const note = document.getElementById("charts-note");
    try {
      const samples = parseMetrics(await this.#server.metricsText());
      this.#take(samples, performance.now() / 1000);
      setText(note, `Each value is taken over the last ${WINDOW_S} seconds.`);
      note.classList.remove("fault");
    } catch (error) {
      if (!(error instanceof ServerFault)) throw error;
      setText(note, `No new values: ${error.message}`);
      note.classList.add("fault");
    }
  }

  /** Take in a reading, made at `nowS`. */
  #take(samples, nowS) {
    const stepS = nowS - this.#beforeS;
    const before = this.#before;
    this.#before = samples;
    this.#beforeS = nowS;
    if (before === null || stepS > LONGEST_STEP_S) {
      this.#steps = [];
      return;
    }
    this.#steps.push({ timeS: nowS, lengthS: stepS, increases: increases(before, samples) });
    this.#steps = this.#steps.filter(({ timeS }) => timeS > nowS - WINDOW_S);
    const view = new Reading([...samples.values()], this.#steps);
    CHARTS.forEach(({ read }, index) => {
      const points = this.#points[index];
      points.push({ timeS: nowS, values: read(view) });
      while (points[0].timeS < nowS - KEPT_S) points.shift();
    });
    TILES.forEach(([, read], index) => setText(this.#tiles[index], read(view)));
    this.#draw();
  }

  #draw() {
    const spanS = Number(document.getElementById("span").value);
    this.#charts.forEach((chart, index) => chart.show(this.#points[index], spanS));
  }
}

/** What the samples of now and the steps of the last seconds say. Values are null where nothing is known. */
class Reading {
  #now;
  #lengthS;
  #increases;

  constructor(now, steps) {
    this.#now = now;
    this.#lengthS = steps.reduce((sum, step) => sum + step.lengthS, 0);
    this.#increases = steps.flatMap((step) => step.increases);
  }

  gauge(name) {
    return total(this.#now, PREFIX + name);
  }

  /** Requests in the engine's and in the server's queue. */
  waiting() {
    const queues = [this.gauge("requests_waiting"), this.gauge("queue_waiting")];
    return queues.every((each) => each === null) ? null : queues.reduce((sum, each) => sum + (each ?? 0), 0);
  }

  /** A counter's increase per second. */
  rate(name, keep) {
    const sum = total(this.#increases, PREFIX + name, keep);
    return sum === null ? null : sum / this.#lengthS;
  }

  quantiles(name) {
    return [0.5, 0.99].map((share) => quantile(this.#increases, PREFIX + name, share));
  }

  /** Percent of the KV blocks that requests hold, and that are kept for reuse. */
  cacheShares() {
    const blocks = (state) => total(this.#now, `${PREFIX}kv_blocks`, (labels) => labels.state === state);
    const [used, cached, free] = ["used", "cached", "free"].map(blocks);
    if (used === null) return [null, null];
    const all = used + cached + free || 1;
    return [(100 * used) / all, (100 * cached) / all];
  }

  hitShare() {
    const asked = total(this.#increases, `${PREFIX}prefix_cache_query_tokens_total`);
    if (!asked) return null;
    return (100 * total(this.#increases, `${PREFIX}prefix_cache_hit_tokens_total`)) / asked;
  }

  /** Answers per second whose status begins with `digit`. */
  answers(digit) {
    const keep = ({ route, status }) => status.startsWith(digit) && !OWN_ROUTES.test(route);
    return this.rate("http_requests_total", keep) ?? 0;
  }
}

function told(value, format) {
  return value === null ? "–" : format(value);
}

function seconds(value) {
  if (value === 0) return "0";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return `${value.toFixed(value < 10 && value % 1 ? 1 : 0)} s`;
}

function compact(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  return value >= 1e4 ? `${(value / 1e3).toFixed(1)} k` : String(Math.round(value));
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
