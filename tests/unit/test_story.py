"""The story: who is the culprit, and what the others were doing."""

from __future__ import annotations

import signal

import pytest

from nb_accelerate.launch.standing import Standing
from nb_accelerate.launch.story import (
    Died,
    LeftFirst,
    RaisedFirst,
    Scene,
    bystanders,
    find_culprit,
    frames_in_fault,
)
from nb_accelerate.messages import Frame, Parcel, Raised, RankEnded, Returned, Waiting

GIB = 1 << 30
CELL = "/tmp/ipykernel_1/7.py"
SCENE = Scene(labels={CELL: "Cell In[7]"}, memory_bytes=16 * GIB, shm_bytes=GIB)


def returned(rank: int, time: float) -> Standing:
    return Standing(rank, answer=Returned(rank, Parcel(b""), "", time, 0), has_left=True)


def raised(rank: int, time: float, *, kind: str = "ValueError", echo: bool = False) -> Standing:
    stack = (Frame(CELL, 12, "train", "dist.all_reduce(x)"),)
    call = "all_reduce" if echo else ""
    message = Raised(rank, None, kind, "text", "", stack, call, echo, time)
    return Standing(rank, answer=message)


def killed(rank: int, time: float, number: int, *, peak: int = 0) -> Standing:
    return Standing(rank, end=RankEnded(rank, number, time, peak))


def test_nobody_is_to_blame_when_all_returned():
    assert find_culprit([returned(0, 1.0), returned(1, 2.0)], SCENE) is None


def test_the_first_exception_by_time_is_the_culprit():
    culprit = find_culprit([raised(0, 2.0), raised(1, 1.0)], SCENE)
    assert isinstance(culprit, RaisedFirst)
    assert culprit.raised.rank == 1


def test_an_echo_is_never_the_culprit_beside_a_cause_even_when_it_came_first():
    culprit = find_culprit([raised(0, 1.0, echo=True), raised(1, 1.5)], SCENE)
    assert isinstance(culprit, RaisedFirst)
    assert culprit.raised.rank == 1


def test_a_death_is_the_culprit_though_it_is_noticed_after_the_exception_that_it_caused():
    ranks = [raised(0, 1.0, kind="MyError"), killed(1, 1.05, signal.SIGKILL)]
    assert isinstance(find_culprit(ranks, SCENE), Died)


def test_a_death_long_after_an_exception_is_a_follower():
    ranks = [raised(0, 1.0), killed(1, 2.0, signal.SIGABRT)]
    assert isinstance(find_culprit(ranks, SCENE), RaisedFirst)


def test_what_we_killed_ourselves_is_no_cause():
    ours = killed(0, 1.0, signal.SIGKILL)
    ours.signalled = True
    culprit = find_culprit([ours, raised(1, 1.1)], SCENE)
    assert isinstance(culprit, RaisedFirst)


def test_the_interrupt_that_we_sent_is_no_cause():
    stopped = raised(0, 0.5, kind="KeyboardInterrupt")
    stopped.signalled = True
    culprit = find_culprit([stopped, raised(1, 1.0)], SCENE)
    assert isinstance(culprit, RaisedFirst)
    assert culprit.raised.rank == 1


def test_a_rank_that_returned_before_the_echo_left_early():
    culprit = find_culprit([raised(0, 2.0, echo=True), returned(1, 1.0)], SCENE)
    assert culprit == LeftFirst((1,), culprit.waiting)
    assert culprit.waiting.rank == 0


def test_a_rank_that_returned_after_the_echo_did_not_leave_early():
    culprit = find_culprit([raised(0, 1.0, echo=True), returned(1, 2.0)], SCENE)
    assert isinstance(culprit, RaisedFirst)
    assert culprit.raised.rank == 0


def test_a_rank_left_behind_without_a_word_is_told_by_who_left():
    behind = Standing(0, end=RankEnded(0, signal.SIGKILL, 9.0, 0), signalled=True)
    culprit = find_culprit([behind, returned(1, 1.0)], SCENE)
    assert culprit == LeftFirst((1,), None)


@pytest.mark.parametrize(
    ("number", "peak", "words"),
    [
        (signal.SIGKILL, 12 * GIB, "most likely out of host memory: its peak was 12.0 GiB of 16.0"),
        (signal.SIGKILL, GIB // 2, "or by someone: its peak was 0.5 GiB"),
        (signal.SIGBUS, 0, "/dev/shm has 1.0 GiB free"),
        (signal.SIGSEGV, 0, "a native library failed"),
        (signal.SIGTERM, 0, "someone outside this run sent it"),
        (signal.SIGXCPU, 0, "the system ended it"),
    ],
)
def test_a_signal_is_told_with_its_likely_cause(number: int, peak: int, words: str):
    culprit = find_culprit([killed(0, 1.0, number, peak=peak)], SCENE)
    assert isinstance(culprit, Died)
    assert culprit.signal == number
    assert words in culprit.cause


def test_an_exit_code_is_told():
    culprit = find_culprit([killed(0, 1.0, 3 << 8)], SCENE)
    assert isinstance(culprit, Died)
    assert (culprit.signal, culprit.exit_code) == (None, 3)


def test_each_other_rank_gets_a_line():
    waiting = Waiting(3, 40.0, "barrier", (Frame(CELL, 20, "train", "dist.barrier()"),))
    ranks = [
        raised(0, 1.0),
        raised(1, 1.1, echo=True),
        returned(2, 0.5),
        Standing(3, waiting=waiting),
        Standing(4),
    ]
    assert bystanders([0], ranks, SCENE) == [
        "rank 1 waited in all_reduce, Cell In[7], line 12, in train: dist.all_reduce(x)",
        "rank 2 had returned",
        "rank 3 waited in barrier, Cell In[7], line 20, in train: dist.barrier()",
        "rank 4 was ended while it worked",
    ]


def test_the_stack_that_faulthandler_prints_is_read_innermost_last():
    printed = [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f (most recent call first):",
        '  File "/usr/lib/python3/ctypes/__init__.py", line 519 in string_at',
        f'  File "{CELL}", line 3 in train',
    ]
    assert frames_in_fault(printed) == (
        Frame(CELL, 3, "train"),
        Frame("/usr/lib/python3/ctypes/__init__.py", 519, "string_at"),
    )
