"""Memory: finding the batch size that fits, and giving memory back."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from nb_accelerate.training.memory import (
    clear_device_cache,
    find_executable_batch_size,
    release_memory,
    should_reduce_batch_size,
)

# From 128 by nine tenths, rounded down: what Accelerate tries.
TRIED = [
    128,
    115,
    103,
    92,
    82,
    73,
    65,
    58,
    52,
    46,
    41,
    36,
    32,
    28,
    25,
    22,
    19,
    17,
    15,
    13,
    11,
    9,
    8,
]


def short_of_memory() -> RuntimeError:
    return RuntimeError("CUDA out of memory. Tried to allocate 20 MiB")


def fitting(limit: int, tried: list[int], **settings):
    """A function that needs a batch of `limit` or less."""

    @find_executable_batch_size(**settings)
    def train(batch_size: int, *args, **kwargs):
        tried.append(batch_size)
        if batch_size > limit:
            raise short_of_memory()
        return batch_size, args, kwargs

    return train


def test_sizes_shrink_by_a_tenth_until_one_fits():
    tried = []
    assert fitting(8, tried)("hello", key=1) == (8, ("hello",), {"key": 1})
    assert tried == TRIED


def test_each_call_starts_from_the_first_size_anew():
    tried = []
    train = fitting(60, tried, starting_batch_size=64)
    train()
    train()
    assert tried == [64, 57, 64, 57]


def test_the_next_size_may_be_the_users_to_choose():
    tried, sizes = [], iter([50, 5])
    train = fitting(8, tried, starting_batch_size=100, reduce_batch_size_fn=lambda: next(sizes))
    assert train()[0] == 5
    assert tried == [100, 50, 5]


@pytest.mark.parametrize("start", [0, 3])
def test_when_nothing_fits_that_is_said(start):
    tried = []
    with pytest.raises(RuntimeError, match="No executable batch size found"):
        fitting(0, tried, starting_batch_size=start)()
    assert tried == [3, 2, 1][: start or 0]


def test_other_errors_are_the_callers():
    @find_executable_batch_size
    def train(batch_size):
        raise KeyError(batch_size)

    with pytest.raises(KeyError, match="128"):
        train()


def test_a_batch_size_of_the_callers_is_refused():
    @find_executable_batch_size(starting_batch_size=16)
    def train(batch_size, model, optimizer):
        raise AssertionError("is never called")

    with pytest.raises(TypeError, match="'batch_size' comes from find_executable_batch_size"):
        train(128, "model", "optimizer")


def test_an_attempt_that_failed_holds_no_memory_in_the_next():
    held: list[weakref.ref] = []
    alive = []

    @find_executable_batch_size(starting_batch_size=3)
    def train(batch_size):
        alive.append([ref() is not None for ref in held])
        activations = torch.zeros(batch_size)
        held.append(weakref.ref(activations))
        if batch_size > 1:
            raise short_of_memory()

    train()
    assert alive == [[], [False], [False, False]]


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (torch.OutOfMemoryError("anything"), True),
        (short_of_memory(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"), True),
        (MemoryError(), True),
        (RuntimeError("shape '[2]' is invalid"), False),
        (ValueError("CUDA out of memory."), False),
    ],
)
def test_a_shortage_of_memory_is_told_from_other_errors(error, short):
    assert should_reduce_batch_size(error) is short


def test_torch_really_says_so_when_the_cpu_has_too_little():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert should_reduce_batch_size(caught.value)


def test_memory_that_is_released_is_free_where_nothing_else_holds_it():
    class Node:
        pass

    held = [Node()]
    held[0].itself = held[0]
    gone = weakref.ref(held[0])
    gc.disable()
    try:
        clear_device_cache()
        assert gone() is not None
        places = release_memory(held.pop(), [1])  # not in an assert, which would hold it
        assert gone() is None
    finally:
        gc.enable()
    assert places == [None, None]
    assert release_memory() == []
