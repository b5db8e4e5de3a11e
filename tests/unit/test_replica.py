"""Replica: who the calling code is."""

from __future__ import annotations

import threading

from nb_accelerate.replica import SOLO, Replica, acting_as, current_replica


def seen_in_a_thread() -> Replica:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_replica()))
    thread.start()
    thread.join()
    return seen[0]


def test_outside_of_any_launch_a_process_is_alone():
    assert current_replica() is SOLO
    assert (SOLO.rank, SOLO.world_size) == (0, 1)


def test_a_replica_holds_within_its_block_and_no_longer():
    me = Replica(rank=1, world_size=2)
    with acting_as(me):
        assert current_replica() is me
        with acting_as(Replica(rank=5)) as inner:
            assert current_replica() is inner
        assert current_replica() is me
    assert current_replica() is SOLO


def test_threads_see_the_replica_of_a_whole_process_and_only_that():
    me = Replica(rank=1)
    with acting_as(me, whole_process=True):
        assert seen_in_a_thread() is me
    assert seen_in_a_thread() is SOLO
    with acting_as(me):
        assert seen_in_a_thread() is SOLO


def test_two_threads_can_be_two_replicas():
    seen = {}

    def be(rank: int, ready: threading.Barrier) -> None:
        with acting_as(Replica(rank=rank)):
            ready.wait(5)
            seen[rank] = current_replica().rank

    ready = threading.Barrier(2)
    threads = [threading.Thread(target=be, args=(rank, ready)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {0: 0, 1: 1}
