"""The run folder: written while the run goes on, read later."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading

import pytest

from nb_accelerate.launch.ledger import (
    KEPT_RUNS,
    SLACK_RUNS,
    Ledger,
    drop_old_runs,
    list_runs,
    newest_run,
    tidy_up,
)
from nb_accelerate.messages import Left, Metric, Metrics, Output


def open_ledger(root, token="t0", name="train", **settings):
    ledger = Ledger(root, name, token=token, spec=lambda: {"num_processes": 2}, **settings)
    ledger.open()
    return ledger


def losses(rank, *values):
    return Metrics(rank, tuple(Metric(n, 1.5, {"loss": v}) for n, v in enumerate(values)))


def finished(root, token, *messages, **settings):
    """The folder of a run that told `messages` and ended well."""
    ledger = open_ledger(root, token, **settings)
    for message in messages:
        ledger.record(message)
    ledger.close({"ok": True})
    return ledger.folder


def log_text(folder):
    return (folder / "log.txt").read_text(encoding="utf-8")


def test_a_folder_is_named_by_time_function_and_token(tmp_path):
    folder = finished(tmp_path, "k3f9", name="<lambda> of/me")
    date, time, name, token = folder.name.split("-")
    assert (len(date), len(time), name, token) == (8, 6, "lambda_of_me", "k3f9")
    assert folder.parent == tmp_path


def test_what_was_asked_for_is_there_from_the_start(tmp_path):
    ledger = open_ledger(tmp_path)
    spec = json.loads((ledger.folder / "spec.json").read_text())
    assert spec["num_processes"] == 2
    assert spec["pid"] == os.getpid()
    assert spec["name"] == "train"
    ledger.close({})


def test_values_that_json_does_not_know_are_written_as_text(tmp_path):
    ledger = Ledger(tmp_path, "f", token="t", spec=lambda: {"where": tmp_path})
    ledger.open()
    assert json.loads((ledger.folder / "spec.json").read_text())["where"] == str(tmp_path)
    ledger.close({})


def test_every_line_of_output_is_in_the_log_with_its_rank(tmp_path):
    folder = finished(
        tmp_path,
        "t",
        Output(0, "stdout", "größe"),
        Output(1, "stderr", "oh"),
        Output(0, "stderr", "10%", "\r"),
        Output(0, "stdout", "na", ""),
        Output(1, "stdout", "other"),
        Output(0, "stdout", "me"),
        Output(1, "stdout", "open at the end", ""),
    )
    assert log_text(folder).splitlines() == [
        "[rank 0] größe",
        "[rank 1 stderr] oh",
        "[rank 1] other",
        "[rank 0] name",
        "[rank 1] open at the end",
    ]


def test_overwritten_open_text_is_not_lost(tmp_path):
    pieces = [Output(0, "stdout", "Loading", ""), Output(0, "stdout", "", "\r")]
    folder = finished(tmp_path, "t", *pieces, Output(0, "stdout", "Done"))
    assert log_text(folder) == "[rank 0] Loading\n[rank 0] Done\n"


def test_text_without_end_does_not_pile_up_in_memory(tmp_path):
    ledger = open_ledger(tmp_path)
    for _ in range(40):
        ledger.record(Output(0, "stdout", "x" * 60_000, ""))
    assert (ledger.folder / "log.txt").stat().st_size > 1_500_000
    ledger.close({})
    assert log_text(ledger.folder).count("x") == 40 * 60_000


def test_metrics_are_a_line_per_record_of_strict_json(tmp_path):
    folder = finished(tmp_path, "t", losses(1, 0.5, math.nan, math.inf, -math.inf))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    first = {"rank": 1, "step": 0, "time": 1.5, "merged": 1, "values": {"loss": 0.5}}
    assert records[0] == first
    assert [r["values"]["loss"] for r in records[1:]] == [None, math.inf, -math.inf]


def test_a_metrics_name_may_hold_anything(tmp_path):
    name = 'a"b\n{1e999}'
    folder = finished(tmp_path, "t", Metrics(0, (Metric(0, 0.0, {name: 1.0}),)))
    assert json.loads((folder / "metrics.jsonl").read_text())["values"] == {name: 1.0}


def test_writing_waits_a_fifth_of_a_second(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.record(Output(0, "stdout", "first"))
    ledger.tick(100.0)
    ledger.record(Output(0, "stdout", "second"))
    assert ledger.deadline() == pytest.approx(100.2)
    ledger.tick(100.1)
    assert log_text(ledger.folder) == "[rank 0] first\n"
    ledger.tick(100.2)
    assert log_text(ledger.folder) == "[rank 0] first\n[rank 0] second\n"
    assert ledger.deadline() is None
    ledger.close({})


def test_a_flood_is_written_before_it_fills_the_memory(tmp_path):
    ledger = open_ledger(tmp_path)
    for number in range(40_000):
        ledger.record(Output(number % 2, "stdout", f"line {number}"))
    assert ledger._log.size < 300_000
    ledger.close({})
    assert len(log_text(ledger.folder).splitlines()) == 40_000


def test_a_run_that_told_nothing_leaves_its_spec_and_outcome_only(tmp_path):
    folder = finished(tmp_path, "t", Left(0))
    assert {path.name for path in folder.iterdir()} == {"outcome.json", "spec.json"}


def test_the_outcome_is_what_the_run_came_to(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.close({"ok": False, "summary": "rank 1 raised ValueError"})
    (run,) = list_runs(tmp_path)
    assert run.outcome["summary"] == "rank 1 raised ValueError"
    assert run.outcome["seconds"] >= 0
    assert run.status == "failed"


# ---------------------------------------------------------------- trouble
def test_a_root_that_is_no_folder_costs_a_notice_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("")
    ledger = open_ledger(tmp_path / "file")
    ledger.record(Output(0, "stdout", "x"))
    ledger.tick(1e9)
    ledger.close({})
    notice = ledger.take_notice()
    assert notice.level == "warning"
    assert "cannot be written" in notice.text
    assert ledger.take_notice() is None


def test_a_full_disk_is_told_once_and_the_rest_goes_on(tmp_path):
    ledger = open_ledger(tmp_path)
    (ledger.folder / "log.txt").symlink_to("/dev/full")
    for now in (1.0, 2.0, 3.0):
        ledger.record(Output(0, "stdout", "x"))
        ledger.tick(now)
    assert not ledger.writing
    assert "No space left on device" in ledger.take_notice().text
    ledger.close({})
    assert ledger.take_notice() is None


def test_a_folder_that_vanishes_costs_a_notice(tmp_path):
    ledger = open_ledger(tmp_path)
    (ledger.folder / "spec.json").unlink()
    ledger.folder.rmdir()
    ledger.close({"ok": True})
    assert ledger.take_notice() is not None


# ---------------------------------------------------------------- reading
def test_runs_are_listed_newest_last(tmp_path):
    folders = [finished(tmp_path, token) for token in ("zz", "mm", "aa")]
    assert [run.folder for run in list_runs(tmp_path)] == folders


def test_there_are_no_runs_where_there_is_no_folder(tmp_path):
    assert list_runs(tmp_path / "nowhere") == []


def test_a_past_run_has_its_metrics_and_log(tmp_path):
    finished(
        tmp_path, "t", losses(0, 1.0, math.nan), losses(1, 3.0), Output(1, "stderr", "[rank 0] x")
    )
    (run,) = list_runs(tmp_path)
    assert run.metrics.mean("loss")[0] == 2.0
    assert math.isnan(run.metrics.mean("loss")[1])
    assert list(run.log) == [(1, "stderr", "[rank 0] x")]
    assert run.spec["num_processes"] == 2
    assert run.status == "ok"


def test_a_past_run_without_output_has_an_empty_log(tmp_path):
    finished(tmp_path, "t")
    (run,) = list_runs(tmp_path)
    assert len(run.log) == len(run.metrics) == 0


def test_a_line_that_a_dying_kernel_left_unfinished_is_skipped(tmp_path):
    folder = finished(tmp_path, "t", losses(0, 1.0))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"rank": 0, "st')
    (run,) = list_runs(tmp_path)
    assert run.metrics.steps("loss") == [0]


def test_of_a_huge_log_the_end_is_read_and_the_rest_counted(tmp_path):
    folder = finished(tmp_path, "t")
    lines = [f"[rank 0] {number:09d} {'x' * 1_000}" for number in range(9_000)]
    (folder / "log.txt").write_text("\n".join(lines) + "\n")
    (run,) = list_runs(tmp_path)
    assert run.log[-1].text.startswith("000008999 ")
    assert len(run.log) + run.log.dropped == 9_000


def test_a_run_without_outcome_is_running_while_its_process_lives(tmp_path):
    ledger = open_ledger(tmp_path)
    (run,) = list_runs(tmp_path)
    assert run.status == "running"
    pretend_owner(ledger.folder, dead_pid())
    (run,) = list_runs(tmp_path)
    assert run.status == "cut off"
    ledger.close({})


def test_a_past_run_shows_itself(tmp_path):
    finished(tmp_path, "t", losses(0, 0.25), Output(0, "stdout", "<b>"), name="<train>")
    (run,) = list_runs(tmp_path)
    assert repr(run).startswith("<train> · 20")
    assert repr(run).endswith("· ok")
    shown = run._repr_html_()
    assert "&lt;train&gt;" in shown
    assert "<b>" not in shown
    assert "0.25" in shown


# ---------------------------------------------------------------- retention
def test_only_the_newest_runs_are_kept(tmp_path):
    for number in range(5):
        in_the_past(finished(tmp_path, f"t{number}"), number)
    newest = finished(tmp_path, "now")
    drop_old_runs(tmp_path, keep=3)
    kept = [run.folder.name for run in list_runs(tmp_path)]
    assert [name[-2:] for name in kept[:2]] == ["t3", "t4"]
    assert kept[2:] == [newest.name]


def test_many_runs_are_tidied_up_and_few_are_left_alone(tmp_path):
    for number in range(KEPT_RUNS + SLACK_RUNS):
        folder = tmp_path / f"20200101-000000-train-{number}"
        folder.mkdir()
        (folder / "spec.json").write_text('{"pid": 0}')
    before = set(threading.enumerate())
    tidy_up(tmp_path)
    assert set(threading.enumerate()) == before
    finished(tmp_path, "now")
    tidy_up(tmp_path)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert len(list_runs(tmp_path)) == KEPT_RUNS


def test_a_run_under_way_is_never_removed(tmp_path):
    running = open_ledger(tmp_path, "live")
    old = in_the_past(running.folder, 0)
    finished(tmp_path, "a")
    drop_old_runs(tmp_path, keep=1)
    assert old.is_dir()
    pretend_owner(old, dead_pid())
    drop_old_runs(tmp_path, keep=1)
    assert not old.exists()
    running._stop()


def test_what_is_not_a_run_is_never_removed(tmp_path):
    others = [tmp_path / "20200101-000000-my-data", tmp_path / "notes"]
    for other in others:
        other.mkdir()
        (other / "spec.json").write_text("[]")
    finished(tmp_path, "a")
    drop_old_runs(tmp_path, keep=1)
    assert all(other.is_dir() for other in others)


def in_the_past(folder, number):
    return folder.rename(folder.parent / f"20200101-00000{number}-train-{folder.name[-2:]}")


def pretend_owner(folder, pid):
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps({**spec, "pid": pid}))


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=30)
    return process.pid


def test_the_newest_run_is_found_by_its_name(tmp_path):
    assert newest_run(tmp_path) is None
    finished(tmp_path, "a")
    later = tmp_path / "29990101-000000-train-b"
    later.mkdir()
    assert newest_run(tmp_path).folder == later
