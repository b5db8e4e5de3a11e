"""Tracked loops: what is told, and how often."""

from __future__ import annotations

import time

import pytest

from nb_accelerate.replica import Replica
from nb_accelerate.training import Accelerator


class Recorder:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int | None, bool]] = []

    def metrics(self, values, step) -> None:
        raise AssertionError("a loop is no metric")

    def progress(self, description, done, total, *, finished) -> None:
        self.steps.append((description, done, total, finished))

    def should_stop(self) -> bool:
        return False


@pytest.fixture
def told() -> Recorder:
    return Recorder()


@pytest.fixture
def accelerator(told: Recorder) -> Accelerator:
    return Accelerator(replica=Replica(reporter=told))


def test_a_loop_is_told_at_its_start_and_at_its_end(accelerator, told) -> None:
    assert list(accelerator.track("abc", "letters")) == ["a", "b", "c"]
    assert told.steps == [("letters", 0, 3, False), ("letters", 3, 3, True)]


def test_a_loop_that_is_left_by_break_is_told_as_finished(accelerator, told) -> None:
    for letter in accelerator.track("abcd", "letters"):
        if letter == "c":
            break
    assert told.steps[-1] == ("letters", 2, 4, True)


def test_a_loop_that_raises_is_told_as_finished(accelerator, told) -> None:
    with pytest.raises(ZeroDivisionError):
        sum(1 / number for number in accelerator.track([1, 0], "numbers"))
    assert told.steps[-1] == ("numbers", 1, 2, True)


def test_a_loop_without_a_length_has_no_total_unless_one_is_given(accelerator, told) -> None:
    list(accelerator.track(iter("ab"), "letters"))
    list(accelerator.track(iter("ab"), "letters", total=2))
    assert [step[2] for step in told.steps] == [None, None, 2, 2]


def test_a_tracked_loop_has_its_iterables_length(accelerator) -> None:
    assert len(accelerator.track("abc")) == 3
    with pytest.raises(TypeError):
        len(accelerator.track(iter("abc")))


def test_a_fast_loop_is_told_20_times_a_second_at_most(accelerator, told) -> None:
    begun = time.monotonic()
    for _ in accelerator.track(range(200_000), "fast"):
        pass
    seconds = time.monotonic() - begun
    assert len(told.steps) <= 2 + 20 * seconds


def test_a_slow_loop_is_told_on_its_way(accelerator, told) -> None:
    for _ in accelerator.track(range(3), "slow"):
        until = time.monotonic() + 0.06
        while time.monotonic() < until:
            pass
    assert [step[1] for step in told.steps] == [0, 1, 2, 3, 3]
