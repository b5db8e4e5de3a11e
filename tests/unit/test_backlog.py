"""Records on their way to the kernel."""

from __future__ import annotations

import math

import numpy as np

from nb_accelerate.messages import Metric
from nb_accelerate.worker.backlog import Backlog, merged, snapshot


def logged(backlog: Backlog, count: int, names: int = 1) -> None:
    for step in range(count):
        backlog.fresh.append((step, float(step), {f"m{i}": float(step) for i in range(names)}))
    backlog.take_in()


def test_a_snapshot_keeps_numbers_and_leaves_out_what_is_none():
    values = {"loss": 1, "accuracy": np.float32(0.5), "note": "text", "flag": True, "none": None}
    assert snapshot(values) == {"loss": 1.0, "accuracy": 0.5, "flag": 1.0}


def test_records_keep_their_order_and_all_of_them_travel():
    backlog = Backlog()
    logged(backlog, 2500)
    sent = []
    while backlog.records:
        sent += backlog.next_batch()
    assert [record.step for record in sent] == list(range(2500))


def test_a_batch_is_small_however_many_values_a_record_has():
    backlog = Backlog()
    logged(backlog, 10, names=600)
    assert len(backlog.next_batch()) == 1


def test_merged_records_keep_the_mean_of_all_that_they_stand_for():
    first = Metric(1, 0.0, {"loss": 1.0}, merged=3)
    assert merged(first, Metric(2, 1.0, {"loss": 5.0})) == Metric(2, 1.0, {"loss": 2.0}, merged=4)


def test_a_backlog_stays_bounded_and_loses_no_mean():
    backlog = Backlog()
    for start in range(0, 50_000, 1000):
        for step in range(start, start + 1000):
            backlog.fresh.append((step, 0.0, {"loss": float(step)}))
        backlog.take_in()
    assert len(backlog.records) <= 4096
    assert sum(record.merged for record in backlog.records) == 50_000
    total = math.fsum(record.values["loss"] * record.merged for record in backlog.records)
    assert math.isclose(total / 50_000, 49_999 / 2)


def test_records_of_other_names_are_not_merged_with_each_other():
    backlog = Backlog()
    for step in range(5000):
        backlog.fresh.append((step, 0.0, {"train" if step % 2 else "eval": 1.0}))
    backlog.take_in()
    assert {frozenset(record.values) for record in backlog.records} == {
        frozenset({"train"}),
        frozenset({"eval"}),
    }
