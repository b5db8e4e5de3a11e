"""Who gets which indices: Accelerate's published tables, and what must hold for any numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, IterableDataset

from nb_accelerate.errors import SpecError
from nb_accelerate.training import BatchSamplerShard, IterableDatasetShard

if TYPE_CHECKING:
    from collections.abc import Iterator


def shards(size, batch, ranks, *, drop_last=False, split=False, even=True) -> list[list[list[int]]]:
    """Every rank's batches."""
    sampler = BatchSampler(range(size), batch, drop_last)
    return [list(BatchSamplerShard(sampler, ranks, rank, split, even)) for rank in range(ranks)]


TABLE = [
    # size, batch, ranks | even | not even | drop_last
    (
        (10, 3, 2),
        [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 0, 1]]],
        [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9]]],
        [[[0, 1, 2]], [[3, 4, 5]]],
    ),
    (
        (10, 4, 2),
        [[[0, 1, 2, 3], [8, 9, 0, 1]], [[4, 5, 6, 7], [2, 3, 4, 5]]],
        [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7]]],
        [[[0, 1, 2, 3]], [[4, 5, 6, 7]]],
    ),
    (
        (9, 3, 2),
        [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [0, 1, 2]]],
        [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5]]],
        [[[0, 1, 2]], [[3, 4, 5]]],
    ),
    ((1, 4, 2), [[[0, 0, 0, 0]], [[0, 0, 0, 0]]], [[[0]], []], [[], []]),
    (
        (7, 2, 3),
        [[[0, 1], [6, 0]], [[2, 3], [1, 2]], [[4, 5], [3, 4]]],
        [[[0, 1], [6]], [[2, 3]], [[4, 5]]],
        [[[0, 1]], [[2, 3]], [[4, 5]]],
    ),
    ((0, 2, 2), [[], []], [[], []], [[], []]),
]


@pytest.mark.parametrize(("sizes", "even", "uneven", "dropped"), TABLE)
def test_batches_go_round_as_in_accelerates_table(sizes, even, uneven, dropped) -> None:
    assert shards(*sizes) == even
    assert shards(*sizes, even=False) == uneven
    assert shards(*sizes, drop_last=True) == dropped


def test_split_batches_are_cut_into_slices_as_in_accelerates_table() -> None:
    assert shards(10, 4, 2, split=True) == [
        [[0, 1], [4, 5], [8, 9]],
        [[2, 3], [6, 7], [0, 1]],
    ]
    assert shards(10, 4, 2, split=True, even=False) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7]]]
    assert shards(9, 4, 2, split=True, even=False) == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7]]]
    assert shards(9, 4, 2, split=True, drop_last=True) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_split_batches_must_divide_among_the_ranks() -> None:
    with pytest.raises(SpecError, match=r"3 equal slices.*batch_size is 4.*multiple of 3"):
        shards(10, 4, 3, split=True)
    with pytest.raises(SpecError, match="makes its own batches"):
        BatchSamplerShard([[0, 1], [2]], 2, 0, True)


sharings = st.fixed_dictionaries(
    {
        "drop_last": st.booleans(),
        "split": st.booleans(),
        "even": st.booleans(),
    }
)


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 4), sharings)
def test_each_index_is_given_out_once_and_lengths_tell_the_truth(size, share, ranks, how) -> None:
    batch = share * ranks if how["split"] else share
    sampler = BatchSampler(range(size), batch, how["drop_last"])
    all_shards = [
        BatchSamplerShard(sampler, ranks, rank, how["split"], how["even"]) for rank in range(ranks)
    ]
    real: list[int] = []
    for round_of_batches in in_rounds(all_shards):
        real += [index for batch, count in round_of_batches for index in batch[:count]]
    block = share * ranks
    left = size // block * block if how["drop_last"] else size
    assert real == list(range(left))
    assert [len(shard) for shard in all_shards] == [len(list(shard)) for shard in all_shards]
    if how["even"]:
        assert len({len(shard) for shard in all_shards}) == 1
        assert all(len(one) == share for shard in all_shards for one in shard)


def in_rounds(all_shards) -> Iterator[list[tuple[list[int], int | None]]]:
    """The ranks' batches with their real counts, one round at a time."""
    batches = [list(shard) for shard in all_shards]
    counts = [[real for _, real in shard.counts] for shard in all_shards]
    for number in range(max(map(len, batches))):
        yield [
            (batches[rank][number], counts[rank][number])
            for rank in range(len(all_shards))
            if number < len(batches[rank])
        ]


class Stream(IterableDataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 4), sharings)
def test_streams_are_shared_out_as_batches_are(size, share, ranks, how) -> None:
    batch = share * ranks if how["split"] else share
    parts = [
        IterableDatasetShard(
            Stream(size), batch, how["drop_last"], ranks, rank, how["split"],
            even_batches=how["even"],
        )
        for rank in range(ranks)
    ]  # fmt: skip
    found = [list(part) for part in parts]
    assert [len(part) for part in parts] == [len(samples) for samples in found]
    block = share * ranks
    whole = size // block * block
    for rank, samples in enumerate(found):
        own = [n for n in range(whole) if n % block // share == rank]
        assert samples[: len(own)] == own
        if size % block and how["even"] and not how["drop_last"]:
            assert len(samples) == len(own) + share
    if not how["even"] and not how["drop_last"]:
        assert sorted(n for samples in found for n in samples) == list(range(size))
