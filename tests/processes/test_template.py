"""The template: kept, replaced, ended; and the ranks that it makes ahead."""

from __future__ import annotations

import os
import signal
import socket
import time

import psutil
import pytest

from nb_accelerate import kill_all, ps, runs
from nb_accelerate.errors import PayloadError, PlanError, RunTimeout, StartError, WorkerDied
from nb_accelerate.launch.environment import run_root, survey_here
from nb_accelerate.launch.forecast import likely_seats
from nb_accelerate.launch.template import template_of_this_kernel


def own_pid() -> int:
    return os.getpid()


def wait_until(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(found)


def pids(name: str) -> set[int]:
    return {process.pid for process in ps() if process.name.startswith(name)}


def test_the_next_ranks_are_made_ahead_and_are_fresh_every_time(launch):
    first = set(launch(own_pid).values)
    assert wait_until(lambda: len(pids("nb-rank") - first) == 2)
    ahead = pids("nb-rank") - first
    second = set(launch(own_pid).values)
    assert second == ahead
    assert second.isdisjoint(first)


def test_ranks_made_ahead_have_what_optimizers_import_though_the_first_launch_came_early(launch):
    def has_dynamo() -> tuple[int, bool]:
        import sys

        return os.getpid(), "torch._dynamo" in sys.modules

    kill_all()
    first = dict(launch(has_dynamo).values)
    assert [*first.values()] == [False, False]  # nothing was imported but what all need
    assert wait_until(lambda: len(pids("nb-rank") - first.keys()) == 2, seconds=30)
    assert [has for _, has in launch(has_dynamo).values] == [True, True]


def test_a_launch_does_not_wait_for_the_templates_chores(launch):
    kill_all()
    launch(own_pid)
    assert len(launch(own_pid).values) == 2  # its ranks were ordered ahead and not made yet


def test_the_first_launch_finds_ranks_made_for_one_like_the_newest_run(launch):
    launch(own_pid)
    seats = template_of_this_kernel()._last[0]
    kill_all()
    template = template_of_this_kernel()
    template.warm_up()
    template.expect(likely_seats(run_root(None), survey_here()))
    assert template._last[0] == seats
    assert wait_until(lambda: template._spare[1].channels[0].has_news(), seconds=30)


def test_ranks_made_ahead_are_not_used_when_the_environment_has_changed(launch, monkeypatch):
    def see() -> str:
        return os.environ["NB_ACCELERATE_TEST_WORD"]

    monkeypatch.setenv("NB_ACCELERATE_TEST_WORD", "one")
    assert launch(see).value == "one"
    monkeypatch.setenv("NB_ACCELERATE_TEST_WORD", "two")
    assert launch(see).values == ["two", "two"]


def test_another_world_size_gets_ranks_of_its_own(launch):
    def world() -> int:
        import torch.distributed as dist

        return dist.get_world_size()

    assert [len(launch(world, num_processes=n).values) for n in (1, 3, 2)] == [1, 3, 2]


def test_a_template_killed_between_launches_is_replaced(launch):
    launch(own_pid)
    pid = template_of_this_kernel().pid
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not psutil.pid_exists(pid) or template_of_this_kernel().pid is None)
    assert len(launch(own_pid).values) == 2
    assert template_of_this_kernel().pid not in (None, pid)


def test_a_template_killed_during_a_launch_is_named_and_takes_all_ranks_along(launch):
    def kill_parent() -> None:
        if os.environ["RANK"] == "0":
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(WorkerDied, match=r"template process .* was killed by SIGKILL"):
        launch(kill_parent)
    assert len(launch(own_pid).values) == 2


def test_a_template_that_cannot_start_says_what_python_said(launch, monkeypatch):
    kill_all()
    monkeypatch.setattr("nb_accelerate.launch.template._BOOT", "raise SystemExit('no way')")
    with pytest.raises(StartError, match="no way"):
        launch(own_pid)
    kill_all()


def test_kill_all_leaves_nothing(launch):
    launch(own_pid)
    assert wait_until(lambda: pids("nb-template") and pids("nb-rank"))
    before = {process.pid for process in ps()}
    kill_all()
    assert ps() == []
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in before))
    assert len(launch(own_pid).values) == 2


def test_a_port_that_is_taken_is_named_with_its_holder(launch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PlanError, match=rf"use_port={port}, but .*process {os.getpid()}"):
            launch(own_pid, use_port=port)


def test_a_free_port_that_was_asked_for_is_used(launch):
    def port() -> str:
        return os.environ["MASTER_PORT"]

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    assert launch(port, use_port=free).value == str(free)


def test_a_run_that_takes_too_long_is_interrupted_and_named(launch, tmp_path):
    def linger() -> None:
        try:
            time.sleep(60)
        finally:
            (tmp_path / os.environ["RANK"]).write_text("saved")

    with pytest.raises(RunTimeout, match="took longer than"):
        launch(linger, timeout=0.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_ranks_are_ended_though_their_template_is_stopped(launch):
    def stop_parent() -> None:
        if os.environ["RANK"] == "0":
            os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(RunTimeout):
        launch(stop_parent, timeout=0.5, grace_seconds=0.5)
    assert time.monotonic() - began < 10
    kill_all()
    assert len(launch(own_pid).values) == 2


def test_a_run_in_the_background_keeps_its_template_when_a_newer_one_is_needed(launch, monkeypatch):
    def linger() -> int:
        time.sleep(3)
        return os.getppid()

    first = launch(linger, block=False)
    old = template_of_this_kernel().pid
    monkeypatch.setenv("OMP_PROC_BIND", "false")  # read when a library is loaded
    assert len(launch(own_pid).values) == 2
    assert template_of_this_kernel().pid != old
    assert first.wait(30).values == [old, old]
    assert wait_until(lambda: not psutil.pid_exists(old) or is_zombie(old))


def is_zombie(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_launch_that_is_refused_is_on_record_as_failed(launch, recorder):
    import threading

    lock = threading.Lock()
    with pytest.raises(PayloadError, match="lock"):
        launch(lambda: lock)
    newest = runs()[-1]
    assert newest.status == "failed"
    assert recorder.ok is False
