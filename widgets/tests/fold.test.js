import assert from "node:assert/strict";
import { test } from "node:test";

import { fold } from "../src/fold.js";

/**
 * @param {number} rank
 * @param {number} step
 * @param {Record<string, number>} values
 */
const record = (rank, step, values) => ({ rank, step, values });

test("the ranks of a step become a mean and its band", () => {
  const series = fold([record(0, 1, { loss: 1 }), record(1, 1, { loss: 4 })]);
  assert.deepEqual(series.get("loss"), [{ step: 1, mean: 2.5, min: 1, max: 4, count: 2 }]);
});

test("records in any order give an ascending series", () => {
  const series = fold([3, 1, 10, 2].map((step) => record(0, step, { loss: step })));
  assert.deepEqual(series.get("loss")?.map((point) => point.step), [1, 2, 3, 10]);
});

test("the order of the records changes no point", () => {
  const records = [0, 1, 2].flatMap((rank) => [1, 2].map((step) => record(rank, step, { loss: rank * step })));
  assert.deepEqual(fold([...records].reverse()), fold(records));
});

test("metrics that are logged at different steps do not mix", () => {
  const series = fold([record(0, 1, { loss: 1 }), record(0, 2, { accuracy: 0.5 })]);
  assert.deepEqual([...series.keys()], ["loss", "accuracy"]);
  assert.deepEqual(series.get("accuracy"), [{ step: 2, mean: 0.5, min: 0.5, max: 0.5, count: 1 }]);
});

test("a rank's later value for a step replaces its earlier one", () => {
  const series = fold([record(0, 1, { loss: 9 }), record(0, 1, { loss: 1 })]);
  assert.deepEqual(series.get("loss"), [{ step: 1, mean: 1, min: 1, max: 1, count: 1 }]);
});

test("one rank's NaN does not hide the others", () => {
  const series = fold([record(0, 1, { loss: NaN }), record(1, 1, { loss: 3 }), record(2, 1, { loss: Infinity })]);
  assert.deepEqual(series.get("loss"), [{ step: 1, mean: 3, min: 3, max: 3, count: 1 }]);
});

test("a step where no value is finite is a gap", () => {
  const series = fold([record(0, 1, { loss: NaN })]);
  assert.deepEqual(series.get("loss"), [{ step: 1, mean: NaN, min: NaN, max: NaN, count: 0 }]);
});

test("a metric may be called like a property of every object", () => {
  const series = fold([record(0, 1, { constructor: 2 })]);
  assert.equal(series.get("constructor")?.[0]?.mean, 2);
});

test("no records are no series", () => {
  assert.equal(fold([]).size, 0);
});
