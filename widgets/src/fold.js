// Records of single ranks, folded into one series per metric: what a chart draws.

/**
 * What one rank logged at one step.
 * @typedef {{ rank: number, step: number, values: Record<string, number> }} MetricRecord
 */

/**
 * All ranks at one step. `count` is how many of them have a finite value there; where none has, the
 * three figures are NaN, which a chart draws as a gap.
 * @typedef {{ step: number, mean: number, min: number, max: number, count: number }} Point
 */

/**
 * Points by metric, in the order in which the metrics first came; each series ascends by step.
 * @typedef {ReadonlyMap<string, readonly Point[]>} Series
 */

/**
 * step → rank → value. A rank's later value for a step replaces its earlier one: a repeated epoch.
 * @typedef {Map<number, Map<number, number>>} ValuesByStep
 */

/**
 * Mean and band over the ranks, per metric and step.
 *
 * Records may come in any order. A value that is not finite counts for nothing: one rank's NaN must
 * not hide the others.
 *
 * @param {Iterable<MetricRecord>} records
 * @returns {Series}
 */
export function fold(records) {
  const collected = collect(records);
  return new Map([...collected].map(([metric, steps]) => [metric, pointsOf(steps)]));
}

/**
 * @param {Iterable<MetricRecord>} records
 * @returns {Map<string, ValuesByStep>}
 */
function collect(records) {
  /** @type {Map<string, ValuesByStep>} */
  const collected = new Map();
  for (const { rank, step, values } of records) {
    for (const [metric, value] of Object.entries(values)) {
      const steps = entry(collected, metric, () => new Map());
      entry(steps, step, () => new Map()).set(rank, value);
    }
  }
  return collected;
}

/**
 * @param {ValuesByStep} steps
 * @returns {Point[]}
 */
function pointsOf(steps) {
  return [...steps]
    .sort(([one], [other]) => one - other)
    .map(([step, byRank]) => pointOf(step, [...byRank.values()].filter(Number.isFinite)));
}

/**
 * @param {number} step
 * @param {number[]} values finite ones
 * @returns {Point}
 */
function pointOf(step, values) {
  if (values.length === 0) return { step, mean: NaN, min: NaN, max: NaN, count: 0 };
  const sum = values.reduce((total, value) => total + value, 0);
  return {
    step,
    mean: sum / values.length,
    min: Math.min(...values),
    max: Math.max(...values),
    count: values.length,
  };
}

/**
 * The value under `key`, made by `make` when there is none.
 * @template K, V
 * @param {Map<K, V>} map
 * @param {K} key
 * @param {() => V} make
 * @returns {V}
 */
function entry(map, key, make) {
  const found = map.get(key);
  if (found !== undefined) return found;
  const made = make();
  map.set(key, made);
  return made;
}
