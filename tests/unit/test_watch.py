"""The watch: notices for collectives that do not get on."""

from __future__ import annotations

from nb_accelerate.launch.standing import Standing
from nb_accelerate.launch.watch import Watch, left_behind
from nb_accelerate.messages import Frame, Parcel, RankEnded, Returned, StackShown, Waiting

CELL = "cell.py"
STACK = (Frame(CELL, 12, "train", "dist.barrier()"),)
LABELS = {CELL: "Cell In[7]"}


def waiting(rank: int, seconds: float) -> Waiting:
    return Waiting(rank, seconds, "barrier", STACK)


def test_a_short_wait_is_no_alarm():
    assert not Watch(30.0, LABELS).hears(waiting(0, 29.0), now=0.0)


def test_a_notice_says_where_every_rank_is():
    watch = Watch(30.0, LABELS)
    ranks = [Standing(0), Standing(1), Standing(2), Standing(3), Standing(4)]
    ranks[3].answer = Returned(3, Parcel(b""), "", 0.0, 0)
    ranks[4].end = RankEnded(4, 0, 0.0, 0)
    assert watch.hears(waiting(0, 31.0), now=100.0)
    watch.learns(StackShown(0, STACK, "barrier"))
    watch.learns(StackShown(1, (Frame(CELL, 20, "train", "time.sleep(99)"),), ""))
    assert watch.notice(ranks, now=100.1) is None, "rank 2 still has time to answer"
    assert watch.notice(ranks, now=101.0) == (
        "No progress in a collective for 31 s:\n"
        "  rank 0 waits in barrier, Cell In[7], line 12, in train: dist.barrier()\n"
        "  rank 1 is at Cell In[7], line 20, in train: time.sleep(99)\n"
        "  rank 2 does not answer: it is stopped, or in native code that holds Python's lock\n"
        "  rank 3 has already returned\n"
        "  rank 4 has ended"
    )


def test_notices_come_once_and_then_at_growing_intervals():
    watch = Watch(30.0, LABELS)
    ranks = [Standing(0)]
    told = []
    for second in range(1, 250):
        if watch.hears(waiting(0, second), now=float(second)):
            watch.learns(StackShown(0, STACK, "barrier"))
        if watch.notice(ranks, now=float(second)):
            told.append(second)
    assert told == [30, 60, 120, 240]


def test_ranks_are_left_behind_when_all_that_run_wait_and_one_has_returned():
    ranks = [Standing(0), Standing(1)]
    ranks[1].answer = Returned(1, Parcel(b""), "", 0.0, 0)
    assert not left_behind(ranks, now=100.0)
    ranks[0].waiting, ranks[0].waiting_heard = waiting(0, 10.0), 99.0
    assert left_behind(ranks, now=100.0)
    assert not left_behind(ranks, now=200.0), "its news is old: it moves again"


def test_ranks_that_all_wait_are_not_left_behind_by_anyone():
    ranks = [Standing(0), Standing(1)]
    for rank in ranks:
        rank.waiting, rank.waiting_heard = waiting(rank.rank, 10.0), 99.0
    assert not left_behind(ranks, now=100.0)
