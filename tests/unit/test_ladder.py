"""The way down: which rung is due when, and for whom."""

from __future__ import annotations

import signal

from nb_accelerate.launch.ladder import AFTER_FAILURE, AT_ONCE, Descent, after_interrupt
from nb_accelerate.launch.standing import Standing
from nb_accelerate.messages import Parcel, RankEnded, Returned


def signals_by_time(descent: Descent, until: float, step: float = 0.05) -> list[tuple[float, str]]:
    """When which signal goes out."""
    sent = []
    for tick in range(round(until / step) + 1):
        now = tick * step
        rung = descent.due(now)
        if rung is not None and rung.signal is not None:
            sent.append((round(now, 2), rung.signal.name))
    return sent


def answered(rank: int) -> Standing:
    return Standing(rank, answer=Returned(rank, Parcel(b""), "", 0.0, 0))


def test_nothing_is_due_before_an_end_has_begun():
    descent = Descent(4.0)
    assert descent.due(100.0) is None
    assert descent.deadline() is None
    assert not descent.has_begun


def test_after_a_failure_others_may_speak_then_clean_up_then_are_killed_until_they_are_gone():
    descent = Descent(4.0)
    descent.begin(AFTER_FAILURE, 0.0)
    assert signals_by_time(descent, 0.8) == [(0.1, "SIGINT"), (0.2, "SIGKILL"), (0.7, "SIGKILL")]


def test_an_interrupt_leaves_time_to_save():
    descent = Descent(4.0)
    descent.begin(after_interrupt(4.0), 0.0)
    assert signals_by_time(descent, 5.2) == [(0.0, "SIGINT"), (4.0, "SIGTERM"), (5.0, "SIGKILL")]


def test_an_end_that_has_begun_is_not_begun_again():
    descent = Descent(4.0)
    descent.begin(after_interrupt(4.0), 0.0)
    descent.due(0.0)
    descent.begin(AFTER_FAILURE, 1.0)
    assert descent.deadline() == 4.0


def test_haste_skips_all_patience_for_everyone():
    descent = Descent(4.0)
    descent.begin(after_interrupt(4.0), 0.0)
    descent.due(0.0)
    descent.hasten(0.5)
    rung = descent.due(0.5)
    assert rung is not None
    assert rung.signal == signal.SIGKILL
    assert descent.concerns(answered(0), rung, 0.5)


def test_a_rank_that_has_answered_has_the_grace_for_its_exit_functions():
    descent = Descent(4.0)
    descent.begin(AT_ONCE, 0.0)
    rung = descent.due(0.0)
    assert rung is not None
    assert not descent.concerns(answered(0), rung, 3.9)
    assert descent.concerns(answered(0), rung, 4.1)
    assert descent.concerns(Standing(1), rung, 0.0)


def test_a_rank_that_is_gone_is_left_in_peace():
    descent = Descent(4.0)
    descent.begin(AT_ONCE, 0.0)
    rung = descent.due(0.0)
    assert rung is not None
    assert not descent.concerns(Standing(0, end=RankEnded(0, 0, 0.0, 0)), rung, 9.0)


def test_waiting_for_what_survives_sigkill_has_an_end():
    descent = Descent(4.0)
    descent.begin(AT_ONCE, 0.0)
    assert not descent.has_failed(18.0)
    assert descent.has_failed(20.0)
