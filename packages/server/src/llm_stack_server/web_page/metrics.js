// Reads Prometheus text and tells what happened between two readings. Knows nothing of charts.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*?)\})? (-?[\d.eE+-]+|[+-]?Inf|NaN)(?: |$)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const COUNTED = /_(?:total|bucket|count|sum)$/;

/**
 * One value under its name and labels.
 *
 * @typedef {{name: string, labels: Record<string, string>, value: number}} Sample
 */

/**
 * The samples of an exposition, by name with labels. Lines that are none are passed over.
 *
 * @returns {Map<string, Sample>}
 */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const found = SAMPLE.exec(line);
    if (!found) continue;
    const [, name, inner = "", value] = found;
    samples.set(`${name}{${inner}}`, { name, labels: parseLabels(inner), value: parseNumber(value) });
  }
  return samples;
}

function parseLabels(inner) {
  const labels = {};
  for (const [, name, value] of inner.matchAll(LABEL)) {
    labels[name] = value.replace(/\\(.)/g, (_, next) => (next === "n" ? "\n" : next));
  }
  return labels;
}

function parseNumber(text) {
  if (text.endsWith("Inf")) return text[0] === "-" ? -Infinity : Infinity;
  return Number(text);
}

/**
 * How far every counter went between two readings. A counter that went back was begun anew, by a new server:
 * then all that it shows is new.
 *
 * @param {Map<string, Sample>} before
 * @param {Map<string, Sample>} after
 * @returns {Sample[]}
 */
export function increases(before, after) {
  const steps = [];
  for (const [key, { name, labels, value }] of after) {
    if (!COUNTED.test(name)) continue;
    const last = before.get(key)?.value ?? 0;
    steps.push({ name, labels, value: value >= last ? value - last : value });
  }
  return steps;
}

/** The sum of the samples of a name; null where there is none. `keep` chooses among them by their labels. */
export function total(samples, name, keep = () => true) {
  let sum = null;
  for (const sample of samples) {
    if (sample.name === name && keep(sample.labels)) sum = (sum ?? 0) + sample.value;
  }
  return sum;
}

/**
 * A quantile of a histogram, spread evenly within its bucket as Prometheus does; null where it is empty.
 *
 * @param {Sample[]} samples Bucket samples; those of several label sets are added up.
 * @param {string} name Without `_bucket`.
 * @param {number} share 0 to 1.
 */
export function quantile(samples, name, share) {
  const counts = new Map();
  for (const sample of samples) {
    if (sample.name !== `${name}_bucket`) continue;
    const bound = parseNumber(sample.labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + sample.value);
  }
  const buckets = [...counts].sort(([left], [right]) => left - right);
  const all = buckets.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return null;
  const rank = share * all;
  let low = 0;
  let below = 0;
  for (const [bound, count] of buckets) {
    if (count >= rank) {
      if (bound === Infinity) return low;
      return count === below ? bound : low + ((bound - low) * (rank - below)) / (count - below);
    }
    low = bound;
    below = count;
  }
  return low;
}
