"""Sharing out without processes: the shares of all ranks, made one after another, beside tables.

The tables are those of Accelerate itself where it is installed.
"""

from __future__ import annotations

import sys
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset

from nb_accelerate.errors import SpecError, TorchdataMissing
from nb_accelerate.training import (
    BatchSamplerShard,
    DataLoaderConfiguration,
    DataLoaderShard,
    IterableDatasetShard,
    SkipBatchSampler,
    SkipDataLoader,
    prepare_data_loader,
    skip_first_batches,
)
from nb_accelerate.training.cutting import cut
from nb_accelerate.training.reading import Start, read

counts = st.integers(0, 30)
shares = st.integers(1, 5)
worlds = st.integers(1, 4)


@st.composite
def ways(draw) -> dict:
    """size, batch, ranks, split, even, drop_last: all that go together."""
    ranks, share, split = draw(worlds), draw(shares), draw(st.booleans())
    return {
        "size": draw(counts), "batch": share * ranks if split else share, "ranks": ranks,
        "split": split, "even": draw(st.booleans()), "drop_last": draw(st.booleans()),
    }  # fmt: skip


class Stream(IterableDataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


def loaders(way: dict, *, stream: bool = False, **more) -> list:
    """Every rank's prepared loader."""
    dataset = Stream(way["size"]) if stream else range(way["size"])
    return [
        prepare_data_loader(
            DataLoader(dataset, way["batch"], drop_last=way["drop_last"]),
            num_processes=way["ranks"], process_index=rank, split_batches=way["split"],
            even_batches=way["even"], **more,
        )
        for rank in range(way["ranks"])
    ]  # fmt: skip


def read_by(loader, start: Start | None = None) -> list[tuple[list[int], list[int]]]:
    """(batch, its real samples) of one rank."""
    found = read(loader._twin, start or Start())
    return [(one.batch.tolist(), one.batch[: one.real].tolist()) for one in found]


def in_order(ranks: list[list[tuple[list[int], list[int]]]]) -> list[int]:
    """The real samples, round by round: what gather_for_metrics gives."""
    rounds = range(max(map(len, ranks)))
    return [n for k in rounds for one in ranks if k < len(one) for n in one[k][1]]


# ---------------------------------------------------------------- beside Accelerate's own
@given(ways())
def test_shares_of_a_batch_sampler_are_accelerates(way) -> None:
    theirs = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    sampler = BatchSampler(range(way["size"]), way["batch"], way["drop_last"])
    for rank in range(way["ranks"]):
        options = (sampler, way["ranks"], rank, way["split"], way["even"])
        ours = BatchSamplerShard(*options)
        assert list(ours) == list(theirs(*options))
        assert len(ours) == len(list(ours))


@given(st.lists(st.integers(1, 4), max_size=9), worlds, st.booleans())
def test_shares_of_batches_of_their_own_sizes_are_accelerates(sizes, ranks, even) -> None:
    theirs = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    batches = [list(range(10 * n, 10 * n + size)) for n, size in enumerate(sizes)]
    for rank in range(ranks):
        ours = BatchSamplerShard(batches, ranks, rank, False, even)
        assert list(ours) == list(theirs(batches, ranks, rank, False, even))


@given(ways())
def test_shares_of_a_stream_are_accelerates(way) -> None:
    theirs = pytest.importorskip("accelerate.data_loader").IterableDatasetShard
    for rank in range(way["ranks"]):
        options = (Stream(way["size"]), way["batch"], way["drop_last"], way["ranks"], rank)
        ours = IterableDatasetShard(*options, way["split"])
        assert list(ours) == list(theirs(*options, way["split"]))


# ---------------------------------------------------------------- every sample once
@given(ways(), st.booleans())
def test_all_ranks_together_read_each_sample_once_and_in_order(way, stream) -> None:
    found = in_order([read_by(one) for one in loaders(way, stream=stream)])
    block = way["batch"] if way["split"] else way["batch"] * way["ranks"]
    left = way["size"] // block * block if way["drop_last"] else way["size"]
    assert found == list(range(left))


@given(ways(), st.booleans(), st.integers(0, 8))
def test_skipped_batches_are_left_out_and_the_rest_is_as_it_was(way, stream, skipped) -> None:
    for loader in loaders(way, stream=stream):
        whole = read_by(loader)
        assert read_by(loader, Start(skipped=skipped)) == whole[skipped:]
        rest = skip_first_batches(loader, skipped)
        assert [batch.tolist() for batch in rest] == [batch for batch, _ in whole[skipped:]]
        assert len(list(rest)) == len(whole[skipped:])
        assert [batch.tolist() for batch in loader] == [batch for batch, _ in whole]


@given(ways(), st.booleans(), worlds, st.integers(0, 6))
def test_other_ranks_go_on_with_the_samples_that_are_left(way, stream, ranks, taken) -> None:
    batch = way["batch"] * ranks if way["split"] else way["batch"]  # for both to share out
    way |= {"batch": batch, "drop_last": False}
    block = batch if way["split"] else batch * way["ranks"]
    taken = max(0, min(taken, (way["size"] - 1) // block))
    (before, *_) = loaders(way, stream=stream)
    iterator = iter(before)
    list(islice(iterator, taken))
    position = before.position()
    iterator.close()
    after = loaders(way | {"ranks": ranks, "even": True}, stream=stream)
    rest = []
    for loader in after:
        loader.restore(position)
        start = loader._journey.next_start(0)
        rest.append(read_by(loader, Start(skipped=start.skipped, offset=start.offset)))
    assert in_order(rest) == list(range(taken * block, way["size"]))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4))
def test_a_last_round_is_cut_into_equal_batches_that_hold_all_samples(sizes, ranks) -> None:
    rows = iter(range(100))
    batches = []
    for size in sizes:
        own = list(islice(rows, size))
        batches.append({"x": torch.tensor(own), "names": [f"{n}" for n in own], "fixed": 3})
    parts = cut(batches, batches[:1], ranks)
    assert parts is not None
    assert len({part.size for part in parts}) == 1
    assert {len(part.batch["x"]) for part in parts} == {part.size for part in parts}
    real = [n for part in parts for n in part.batch["x"][: part.real].tolist()]
    assert real == list(range(sum(sizes)))
    assert all(part.batch["names"] == [f"{n}" for n in part.batch["x"].tolist()] for part in parts)
    assert all(part.batch["fixed"] == 3 for part in parts)


@given(counts, shares, worlds)
def test_a_sampler_with_larger_batches_than_it_says_loses_none(size, share, ranks) -> None:
    class Odd:
        batch_size = share
        drop_last = False

        def __iter__(self):
            numbers = iter(range(size))
            while batch := list(islice(numbers, share + 2)):
                yield batch

    shards = [BatchSamplerShard(Odd(), ranks, rank) for rank in range(ranks)]
    found = [list(shard) for shard in shards]
    real = [n for shard, own in zip(shards, found, strict=True)
            for batch, (_, count) in zip(own, shard.counts, strict=True)
            for n in batch[:count]]  # fmt: skip
    assert sorted(real) == list(range(size))


# ---------------------------------------------------------------- skipping by hand
@given(counts, shares, st.integers(0, 8), st.integers(0, 3))
def test_skipped_batches_may_be_kept_at_the_beginning(size, batch, skipped, kept) -> None:
    sampler = BatchSampler(range(size), batch, drop_last=False)
    whole, rest = list(sampler), SkipBatchSampler(sampler, skipped, keep_first=kept)
    first = min(kept, skipped)
    assert list(rest) == whole[:first] + whole[skipped:]
    assert len(rest) == len(list(rest))


def test_plain_loaders_are_skipped_without_being_read() -> None:
    read_indices = []

    class Table(TensorDataset):
        def __getitem__(self, index):
            read_indices.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Table(torch.arange(8)), 2)
    rest = skip_first_batches(loader, 2)
    assert type(rest) is DataLoader
    assert [batch.tolist() for (batch,) in rest] == [[4, 5], [6, 7]]
    assert read_indices == [4, 5, 6, 7]
    assert (len(rest), len(loader)) == (2, 4)
    stream = skip_first_batches(DataLoader(Stream(5), 2), 1)
    assert [batch.tolist() for batch in stream] == [[2, 3], [4]]
    assert skip_first_batches(loader, 0) is loader


def test_a_loader_that_skips_is_prepared_with_what_it_leaves_out() -> None:
    skipping = SkipDataLoader(range(8), skip_batches=1, batch_size=2)
    assert [batch.tolist() for batch in skipping] == [[2, 3], [4, 5], [6, 7]]
    assert [batch.tolist() for batch in skipping.unprepared] == [[2, 3], [4, 5], [6, 7]]
    shared = prepare_data_loader(
        skip_first_batches(DataLoader(range(12), 2), 2), num_processes=2, process_index=1
    )
    assert [batch.tolist() for batch in shared] == [[6, 7], [10, 11]]
    assert prepare_data_loader(shared) is shared


# ---------------------------------------------------------------- what a loader is
def test_a_prepared_loader_is_of_the_class_that_it_was_made_of() -> None:
    class Mine(DataLoader):
        extra = 7

    shared = prepare_data_loader(Mine(range(4), 2))
    assert isinstance(shared, Mine)
    assert type(shared) is DataLoaderShard
    assert shared.extra == 7


def test_a_loader_tells_of_its_passes_as_accelerates_does() -> None:
    loader = prepare_data_loader(DataLoader(range(7), 2), num_processes=2, process_index=0)
    assert (loader.remainder, loader.end_of_dataloader, loader.iteration) == (3, False, 0)
    told = [loader.end_of_dataloader for _ in loader]
    assert told == [False, True]
    assert (loader.iteration, loader.total_batch_size, loader.total_dataset_length) == (1, 4, 7)
    dropping = prepare_data_loader(DataLoader(range(7), 2, drop_last=True))
    assert dropping.remainder == -1
    assert prepare_data_loader(DataLoader(Stream(3))).remainder == -1


def test_a_pass_can_be_ended_by_hand() -> None:
    loader = DataLoaderShard(range(6), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    assert loader.gradient_state.active_dataloader is loader
    loader.end()
    assert loader.gradient_state.active_dataloader is None
    iterator.close()
    assert loader.position()["batches"] == 0


def test_a_position_says_where_a_pass_is_and_is_restored_anywhere() -> None:
    loader = prepare_data_loader(DataLoader(range(9), 2))
    for number, _ in enumerate(loader):
        if number == 1:
            state = loader.state_dict()
    assert state["position"]["batches"] == 2
    other = prepare_data_loader(DataLoader(range(9), 2))
    other.load_state_dict(state)
    assert other.position()["batches"] == 2
    assert [batch.tolist() for batch in other] == [[4, 5], [6, 7], [8]]
    assert [batch.tolist() for batch in other] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    other.load_state_dict(state)
    other.set_epoch(5)  # another epoch than that of the position
    assert len(list(other)) == 5
    with pytest.raises(SpecError, match="without a position"):
        other.load_state_dict({"_num_yielded": 3})


def test_a_stateful_loader_is_refused_where_torchdata_is_missing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdata", None)
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(TorchdataMissing, match=r"torchdata.*not installed. Install"):
        DataLoaderConfiguration(use_stateful_dataloader=True)
    assert issubclass(TorchdataMissing, ImportError)
