"""A run's messages, folded."""

from __future__ import annotations

import importlib.util
import math
import sys

import pytest

from nb_accelerate.messages import (
    Interrupted,
    Left,
    Metric,
    Metrics,
    Notice,
    Output,
    Parcel,
    Progress,
    Raised,
    RankEnded,
    Ready,
    Returned,
    Waiting,
)
from nb_accelerate.record import (
    Log,
    LogLine,
    MetricTable,
    RunRecord,
    format_number,
    plain,
    rank_tag,
)

READY = Ready(1, pid=7)
RETURNED = Returned(1, Parcel(b""), "", 0.0, 0)
RAISED = Raised(1, None, "ValueError", "", "", (), "", echo=False, time=0.0)
ENDED = RankEnded(1, status=9, time=0.0, peak_memory_bytes=0)


def folded(*messages, world_size=2):
    record = RunRecord(world_size)
    for message in messages:
        record.fold(message)
    return record


def table(*rows):
    """A table of (rank, step, values)."""
    made = MetricTable()
    for rank, step, values in rows:
        made.add(rank, step, values)
    return made


def two_ranks():
    return table(
        (0, 1, {"loss": 1.0}),
        (1, 1, {"loss": 3.0}),
        (0, 2, {"loss": 0.5, "acc": 0.25}),
        (1, 2, {"loss": 1.5}),
    )


def log_of(*outputs, **limits):
    log = Log(**limits)
    for output in outputs:
        log.add(output)
    return log


# ---------------------------------------------------------------- ranks
def test_ranks_are_starting_until_they_tell_otherwise():
    assert folded().status == {0: "starting", 1: "starting"}


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ((READY,), "running"),
        ((READY, RETURNED), "returned"),
        ((READY, RETURNED, Left(1), ENDED), "returned"),
        ((READY, RAISED, Left(1), ENDED), "raised"),
        ((RAISED,), "raised"),
        ((READY, Left(1), ENDED), "left"),
        ((READY, ENDED), "died"),
        ((ENDED,), "died"),
    ],
)
def test_the_first_end_that_a_rank_comes_to_counts(messages, status):
    assert folded(*messages).status == {0: "starting", 1: status}


def test_progress_is_the_newest_of_each_loop_and_rank():
    def at(rank, done):
        return Progress(rank, "epoch 0", done, 10, finished=False, time=float(done))

    record = folded(at(0, 1), at(1, 1), at(0, 2))
    assert record.progress == {("epoch 0", 0): at(0, 2), ("epoch 0", 1): at(1, 1)}


def test_loops_without_end_keep_memory_bounded():
    loops = [Progress(0, f"epoch {n}", 1, 1, finished=True, time=0.0) for n in range(5_000)]
    progress = folded(*loops).progress
    assert len(progress) <= 2_000
    assert ("epoch 4999", 0) in progress


def test_notices_are_kept_in_order():
    notices = [Notice("one"), Notice("two", "warning")]
    assert list(folded(*notices).notices) == notices


def test_a_record_takes_every_kind_of_message():
    metrics = Metrics(0, (Metric(3, 0.0, {"loss": 1.0}), Metric(4, 0.0, {"loss": 0.5})))
    record = folded(
        Waiting(0, 30.0, "all_reduce", ()), Interrupted(0), metrics, Output(0, "stdout", "x")
    )
    assert record.metrics.steps("loss") == [3, 4]
    assert list(record.log) == [LogLine(0, "stdout", "x")]


# ---------------------------------------------------------------- metrics
def test_a_metric_is_folded_over_the_ranks_at_each_step():
    metrics = two_ranks()
    assert metrics.names == ("loss", "acc")
    assert metrics.ranks == (0, 1)
    assert metrics.steps("loss") == [1, 2]
    assert metrics.mean("loss") == [2.0, 1.0]
    assert metrics.min("loss") == [1.0, 0.5]
    assert metrics.max("loss") == [3.0, 1.5]
    assert metrics.last("loss") == 1.0


def test_a_rank_that_did_not_log_at_a_step_is_nan_there():
    metrics = table((0, 1, {"a": 1.0}), (1, 2, {"a": 2.0}))
    by_rank = metrics.by_rank("a")
    assert by_rank[0][0] == 1.0
    assert math.isnan(by_rank[0][1])
    assert math.isnan(by_rank[1][0])
    assert metrics.mean("a") == [1.0, 2.0]


def test_rows_hold_what_was_logged_at_their_step():
    assert list(two_ranks()) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0, "acc": 0.25}]
    assert len(two_ranks()) == 2


def test_steps_that_come_out_of_order_are_put_in_order():
    metrics = table((0, 5, {"a": 5.0}), (0, 3, {"a": 3.0}), (0, 4, {"a": 4.0}))
    assert metrics.steps("a") == [3, 4, 5]
    assert metrics.mean("a") == [3.0, 4.0, 5.0]
    assert metrics.last("a") == 5.0


@pytest.mark.parametrize("between", [(), ((0, 9, {"a": 9.0}),)])
def test_of_two_values_at_one_step_the_later_counts(between):
    metrics = table((0, 1, {"a": 1.0}), *between, (0, 1, {"a": 2.0}))
    assert metrics.mean("a")[0] == 2.0


def test_the_last_mean_is_over_the_ranks_that_have_come_that_far():
    metrics = table((0, 1, {"a": 1.0}), (1, 1, {"a": 3.0}), (0, 2, {"a": 9.0}))
    assert metrics.last("a") == 9.0
    assert metrics.newest("a") == {0: (2, 9.0), 1: (1, 3.0)}


def test_nan_and_infinity_are_values():
    metrics = table((0, 1, {"a": math.nan}), (1, 1, {"a": 1.0}), (0, 2, {"a": math.inf}))
    assert math.isnan(metrics.mean("a")[0])
    assert math.isnan(metrics.min("a")[0])
    assert metrics.max("a")[1] == math.inf


def test_an_unknown_metric_is_refused_with_the_names_there_are():
    with pytest.raises(KeyError, match=r"no metric 'los' was logged.*'loss', 'acc'"):
        two_ranks().mean("los")


def test_a_value_costs_little_more_than_its_two_numbers():
    metrics = table(*((0, step, {"loss": 1.0}) for step in range(100_000)))
    series = metrics._columns["loss"][0]
    assert sys.getsizeof(series.steps) + sys.getsizeof(series.values) < 2_000_000


def test_a_table_shows_its_rows():
    assert repr(two_ranks()).splitlines() == [
        "step  loss   acc",
        "   1     2",
        "   2     1  0.25",
        "2 steps × 2 metrics, mean over 2 ranks",
    ]


def test_a_long_table_shows_both_ends():
    shown = repr(table(*((0, step, {"a": float(step)}) for step in range(1_000))))
    assert "…" in shown
    assert "999" in shown
    assert len(shown.splitlines()) < 25


def test_an_empty_table_says_so():
    assert "no metrics" in repr(MetricTable())
    assert "no metrics" in MetricTable()._repr_html_()


def test_names_are_escaped_in_html():
    shown = table((0, 1, {"<script>alert(1)</script>": 1.0}))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_html_shows_the_band_where_the_ranks_differ():
    shown = two_ranks()._repr_html_()
    assert "1 <small>(0.5 – 1.5)</small>" in shown
    assert "<td>0.25</td>" in shown


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        two_ranks().to_pandas()


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_a_data_frame_has_a_row_per_step():
    frame = two_ranks().to_pandas()
    assert frame.index.name == "step"
    assert frame["loss"].tolist() == [2.0, 1.0]
    assert math.isnan(frame["acc"][1])
    by_rank = two_ranks().to_pandas(by_rank=True)
    assert by_rank[("loss", 1)].tolist() == [3.0, 1.5]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12.0, "12"),
        (123456.7, "123457"),
        (1e-7, "1e-07"),
        (1.5e12, "1500000000000"),
        (1.23e20, "1.23e+20"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text


# ---------------------------------------------------------------- log
def test_a_log_is_a_sequence_of_lines():
    log = log_of(Output(0, "stdout", "a"), Output(1, "stderr", "b"))
    assert list(log) == [(0, "stdout", "a"), (1, "stderr", "b")]
    assert log[-1] == LogLine(1, "stderr", "b")
    assert log[0:1] == [(0, "stdout", "a")]
    assert len(log) == 2


def test_text_is_of_one_rank_or_of_all_with_their_tags():
    log = log_of(Output(0, "stdout", "a"), Output(1, "stderr", "b"), Output(0, "stdout", "c"))
    assert log.text(rank=0) == "a\nc\n"
    assert log.text() == str(log) == "[rank 0] a\n[rank 1 stderr] b\n[rank 0] c\n"


def test_open_text_and_its_rest_are_one_line_whatever_came_between():
    log = log_of(
        Output(0, "stdout", "x = ", ""), Output(1, "stdout", "y"), Output(0, "stdout", "1")
    )
    assert log.text() == "[rank 0] x = 1\n[rank 1] y\n"


def test_bars_are_not_in_the_log_until_they_stay():
    log = log_of(Output(0, "stderr", "10%", "\r"), Output(0, "stderr", "100%"))
    assert log.text(rank=0) == "100%\n"


def test_overwritten_open_text_is_a_line_of_its_own():
    log = log_of(
        Output(0, "stdout", "Loading", ""),
        Output(0, "stdout", "", "\r"),
        Output(0, "stdout", "Done"),
    )
    assert log.text(rank=0) == "Loading\nDone\n"


def test_the_newest_lines_are_kept_and_the_dropped_ones_counted():
    log = log_of(*(Output(0, "stdout", str(n)) for n in range(10)), max_lines=3)
    assert [line.text for line in log] == ["7", "8", "9"]
    assert log.dropped == 7
    assert repr(log).startswith("… 7 earlier lines\n[rank 0] 7\n")


def test_the_log_is_bounded_in_characters_too():
    log = log_of(*(Output(0, "stdout", "x" * 100) for _ in range(100)), max_characters=1_000)
    assert len(log) == 10
    assert log.dropped == 90


def test_a_line_that_never_ends_is_bounded():
    pieces = [Output(0, "stdout", "x" * 65_536, "") for _ in range(1_000)]
    log = log_of(*pieces, max_characters=1_000_000)
    assert sum(len(line.text) for line in log) <= 1_000_000


def test_dropping_an_open_line_keeps_the_count_of_characters_right():
    open_text = Output(0, "stdout", "a" * 60, "")
    others = [Output(1, "stdout", "b" * 50) for _ in range(3)]
    log = log_of(open_text, *others, open_text, *others, max_characters=160)
    assert log._characters == sum(len(line.text) for line in log)


def test_html_has_the_log_of_each_rank_escaped_and_without_colour_codes():
    log = log_of(Output(0, "stdout", "<b>\x1b[31mred\x1b[0m</b>"), Output(1, "stderr", "oh"))
    shown = log._repr_html_()
    assert shown.count("<details") == 2
    assert "<details open>" in shown
    assert "&lt;b&gt;red&lt;/b&gt;" in shown
    assert "jp-error-color1" in shown


def test_html_of_a_long_log_is_cut_with_a_word_about_it():
    shown = log_of(*(Output(0, "stdout", f"line {n};") for n in range(2_000)))._repr_html_()
    assert "1500 earlier lines" in shown
    assert "line 1999;" in shown
    assert "line 3;" not in shown


def test_an_empty_log_says_so():
    assert repr(Log()) == "nothing was printed"
    assert "nothing was printed" in Log()._repr_html_()


def test_plain_text_has_no_control_sequences():
    link = "\x1b]8;;https://example.org\x07here\x1b]8;;\x07"
    assert plain(f"\x1b[1;31ma\x1b[0m\x1b[2K\tb\x08 {link}") == "a\tb here"


@pytest.mark.parametrize(
    ("ranks", "tag"),
    [([0], "[rank 0]"), ([1, 0], "[ranks 0-1]"), ([0, 1, 2, 3, 6], "[ranks 0-3,6]")],
)
def test_a_tag_names_its_ranks(ranks, tag):
    assert rank_tag(ranks) == tag
