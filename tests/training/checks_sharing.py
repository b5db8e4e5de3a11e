"""Loaders on two ranks: rank 0 reading for all, skipping, resuming, torchdata's states."""

from __future__ import annotations

import io
import random
from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Subset, TensorDataset

from nb_accelerate.errors import SpecError
from nb_accelerate.training import (
    Accelerator,
    DataLoaderConfiguration,
    DataLoaderDispatcher,
    DataLoaderShard,
    prepare_data_loader,
    skip_first_batches,
)


def rank() -> int:
    return dist.get_rank()


def dispatching(**more) -> Accelerator:
    return Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True, **more))


def numbers(size: int, batch: int, **options) -> DataLoader:
    return DataLoader(range(size), batch, **options)


def own(loader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def gathered(loader, accelerator: Accelerator) -> list[int]:
    return [n for batch in loader for n in accelerator.gather_for_metrics(batch).tolist()]


class Stream(IterableDataset):
    """Numbers; on rank 1 other ones, for rank 0 must be the one that reads."""

    def __init__(self, size: int, *, alike: bool = False) -> None:
        self.size = size
        self.alike = alike

    def __iter__(self):
        first = 0 if self.alike else 1000 * rank()
        return iter(range(first, first + self.size))


# ---------------------------------------------------------------- rank 0 reads for all
def check_dispatched_batches_are_those_of_accelerates_table() -> None:
    accelerator = dispatching()
    table = {
        (7, 2): ([[0, 1], [4, 5]], [[2, 3], [6, 0]]),
        (10, 4): ([[0, 1, 2, 3], [8]], [[4, 5, 6, 7], [9]]),
        (11, 4): ([[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7], [10, 0]]),
        (13, 4): ([[0, 1, 2, 3], [8, 9, 10]], [[4, 5, 6, 7], [11, 12, 0]]),
        (1, 4): ([[0]], [[0]]),
        (8, 2): ([[0, 1], [4, 5]], [[2, 3], [6, 7]]),
    }
    for sizes, wanted in table.items():
        loader = accelerator.prepare(numbers(*sizes))
        assert type(loader) is DataLoaderDispatcher
        assert own(loader) == wanted[rank()], sizes
        assert len(loader) == len(wanted[0])
    loader = accelerator.prepare(numbers(7, 2, drop_last=True))
    assert own(loader) == ([[0, 1]], [[2, 3]])[rank()]
    assert own(accelerator.prepare(numbers(0, 2))) == []


def check_gather_for_metrics_is_exact_for_dispatched_batches() -> None:
    for split in (False, True):
        accelerator = dispatching(split_batches=split)
        for size in range(14):
            for batch in (2, 4):
                for make in (numbers, lambda n, b: DataLoader(Stream(n), b)):
                    loader = accelerator.prepare(make(size, batch))
                    assert gathered(loader, accelerator) == list(range(size)), (size, batch, split)
        accelerator.free_memory()


def check_split_batches_that_are_dispatched_are_cut() -> None:
    accelerator = dispatching(split_batches=True)
    loader = accelerator.prepare(numbers(10, 4))
    assert own(loader) == ([[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]])[rank()]
    with pytest.raises(SpecError, match="round multiple of 2"):
        accelerator.prepare(numbers(9, 3))


class Scored(NamedTuple):
    score: torch.Tensor
    names: list[str]


def _collated(samples: list[int]) -> dict:
    return {
        "scored": Scored(torch.tensor(samples) * 2.0, [f"sample {n}" for n in samples]),
        "objects": [{"n": n} for n in samples],
        "constant": "value",
        "flags": torch.tensor([n % 2 == 0 for n in samples]),
        "wide": torch.tensor(samples, dtype=torch.bfloat16)[:, None].expand(-1, 3),
    }


def check_any_structure_can_be_dispatched() -> None:
    accelerator = dispatching()
    loader = accelerator.prepare(numbers(7, 2, collate_fn=_collated))
    names, objects, scores = [], [], []
    for batch in loader:
        assert type(batch["scored"]) is Scored
        assert batch["constant"] == "value"
        assert batch["flags"].dtype is torch.bool
        assert batch["wide"].shape == (len(batch["flags"]), 3)
        found = accelerator.gather_for_metrics((batch["scored"], batch["objects"]))
        scores += found[0].score.tolist()
        names += found[0].names
        objects += [one["n"] for one in found[1]]
    assert objects == list(range(7))
    assert names == [f"sample {n}" for n in range(7)]
    assert scores == [2.0 * n for n in range(7)]


def check_batches_of_unequal_length_are_dispatched_whole() -> None:
    accelerator = dispatching()
    batches = [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9], [10]]
    loader = accelerator.prepare(DataLoader(range(11), batch_sampler=batches))
    assert own(loader)[:2] == ([[0, 1, 2], [4, 5]], [[3], [6, 7, 8, 9]])[rank()]
    assert gathered(loader, accelerator) == list(range(11))

    def padded(samples: list[int]) -> torch.Tensor:  # widths that cannot be put together
        return torch.tensor(samples)[:, None].expand(-1, len(samples) + samples[0])

    loader = accelerator.prepare(DataLoader(range(5), batch_size=2, collate_fn=padded))
    seen = [batch[:, 0].tolist() for batch in loader]
    assert seen == ([[0, 1], [4]], [[2, 3], [0, 1]])[rank()]


def check_large_batches_are_dispatched() -> None:
    accelerator = dispatching()
    data = torch.arange(6 * 40000, dtype=torch.float64).reshape(6, 40000)
    loader = accelerator.prepare(DataLoader(TensorDataset(data), 1))
    for number, (batch,) in enumerate(loader):
        assert torch.equal(batch[0], data[2 * number + rank()])


def check_single_items_are_dispatched() -> None:
    accelerator = dispatching()
    items = DataLoader(torch.arange(6).reshape(3, 2), batch_size=None)
    assert own(accelerator.prepare(items)) == ([[0, 1], [4, 5]], [[2, 3], [0, 1]])[rank()]
    stream = accelerator.prepare(DataLoader(Stream(3), batch_size=None))
    assert list(stream) == ([0, 2], [1, 0])[rank()]
    sampler = BatchSampler(range(5), 2, drop_last=False)
    loader = DataLoader(torch.arange(5), sampler=sampler, batch_size=None)
    assert gathered(accelerator.prepare(loader), accelerator) == list(range(5))


def check_a_shuffle_that_is_dispatched_is_that_of_rank_0_and_leaves_the_ranks_alike() -> None:
    for workers in (0, 1):
        torch.manual_seed(3)
        plain = [n for b in numbers(9, 2, shuffle=True, num_workers=workers) for n in b.tolist()]
        drawn = torch.rand(1)
        accelerator = dispatching()
        torch.manual_seed(3)
        loader = accelerator.prepare(numbers(9, 2, shuffle=True, num_workers=workers))
        assert gathered(loader, accelerator) == plain
        assert torch.equal(torch.rand(1), drawn)


def check_a_failure_in_reading_is_an_error_on_all_ranks() -> None:
    class Broken(IterableDataset):
        def __iter__(self):
            yield from range(4)
            raise OSError("the disk is gone")

    loader = dispatching().prepare(DataLoader(Broken(), 1))
    error, said = ((OSError, "the disk is gone"), (RuntimeError, "rank 0 has failed"))[rank()]
    with pytest.raises(error, match=said):
        own(loader)
    assert own(dispatching().prepare(numbers(2, 1))) == [[rank()]]


def check_a_break_and_nested_loops_keep_dispatching_in_step() -> None:
    accelerator = dispatching()
    train, evaluation = accelerator.prepare(numbers(12, 2), numbers(5, 2))
    for _ in train:
        break
    trained = []
    for batch in train:
        trained += accelerator.gather_for_metrics(batch).tolist()
        assert gathered(evaluation, accelerator) == list(range(5))
        for _ in evaluation:
            break
    assert trained == list(range(12))


def check_batches_can_be_sliced_by_a_function_of_the_users() -> None:
    def backwards(data, rows, process_index, num_processes):
        assert num_processes == 2
        return data.flip(0)[rows]

    accelerator = dispatching(split_batches=True)
    loader = accelerator.prepare_data_loader(numbers(8, 4), slice_fn_for_dispatch=backwards)
    assert own(loader) == ([[3, 2], [7, 6]], [[1, 0], [5, 4]])[rank()]


# ---------------------------------------------------------------- streams that are shared out
def check_streams_with_shards_give_each_rank_its_own() -> None:
    class Sharded(IterableDataset):
        n_shards = 4

        def __init__(self, shards=range(4)) -> None:
            self.shards = shards

        def shard(self, num_shards: int, index: int) -> Sharded:
            return Sharded(self.shards[index::num_shards])

        def __iter__(self):
            return (10 * shard + n for shard in self.shards for n in range(2))

    loader = Accelerator().prepare(DataLoader(Sharded(), 2))
    assert own(loader) == ([[0, 1], [20, 21]], [[10, 11], [30, 31]])[rank()]
    there = Sharded(range(rank(), 4, 2))
    there._distributed = object()  # as datasets.split_dataset_by_node marks it
    assert own(Accelerator().prepare(DataLoader(there, 2))) == own(loader)


# ---------------------------------------------------------------- skipping
def _kinds() -> list[tuple[str, Accelerator, DataLoader]]:
    """One of each kind, of nine samples with batches of two."""
    return [
        ("shared", Accelerator(), numbers(9, 2)),
        ("split", Accelerator(split_batches=True), numbers(9, 4)),
        ("stream", Accelerator(), DataLoader(Stream(9, alike=True), 2)),
        ("dispatched", dispatching(), numbers(9, 2)),
        ("dispatched stream", dispatching(), DataLoader(Stream(9), 2)),
        ("worker", Accelerator(), numbers(9, 2, num_workers=2)),
        ("stateful", Accelerator(dataloader_config=_STATEFUL), numbers(9, 2)),
        ("stateful stream", Accelerator(dataloader_config=_STATEFUL),
         DataLoader(Stream(9, alike=True), 2)),
    ]  # fmt: skip


_STATEFUL = DataLoaderConfiguration(use_stateful_dataloader=True)


def check_skipped_loaders_give_the_rest_and_its_samples_exactly() -> None:
    for name, accelerator, raw in _kinds():
        loader = accelerator.prepare(raw)
        whole = own(loader)
        for skipped in range(4):
            rest = accelerator.skip_first_batches(loader, skipped)
            assert type(rest) is type(loader)
            assert own(rest) == whole[skipped:], (name, skipped)
            if "stream" not in name:
                assert len(rest) == len(loader) - skipped
            left = gathered(skip_first_batches(loader, skipped), accelerator)
            assert left == list(range(9))[4 * skipped :], (name, skipped)
        assert own(loader) == whole


def check_skipped_samples_are_not_read() -> None:
    read: list[int] = []

    class Table:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    loader = Accelerator().prepare(DataLoader(Table(), 2))
    assert own(skip_first_batches(loader, 2)) == ([[8, 9]], [[10, 11]])[rank()]
    assert read == ([8, 9], [10, 11])[rank()]


def check_a_skipped_loader_goes_on_with_the_epochs_of_its_own() -> None:
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=1)
    accelerator = Accelerator(dataloader_config=config)
    loader = accelerator.prepare(numbers(9, 2, shuffle=True))
    epochs = [own(loader) for _ in range(3)]
    again = accelerator.prepare(numbers(9, 2, shuffle=True))
    own(again)
    assert own(accelerator.skip_first_batches(again, 1)) == epochs[1][1:]
    assert own(again) == epochs[2]


# ---------------------------------------------------------------- positions
def saved(position: dict) -> dict:
    """As a checkpoint has it."""
    file = io.BytesIO()
    torch.save(position, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _two_epochs(loader, draws: list[float]) -> list[list[list[int]]]:
    epochs = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch.tolist())
            draws.append(torch.rand(1).item() + random.random() + float(np.random.rand()))
    return epochs


def check_a_restored_position_gives_the_rest_and_then_the_next_epoch() -> None:
    for name, accelerator, raw in _kinds():
        for shuffled in (False, True) if not isinstance(raw.dataset, IterableDataset) else (False,):
            workers = raw.num_workers
            if shuffled:
                raw = numbers(9, raw.batch_size, shuffle=True, num_workers=workers)
            _assert_resumed_alike(name, accelerator, raw)


def _assert_resumed_alike(name: str, accelerator: Accelerator, raw: DataLoader) -> None:
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    whole_draws: list[float] = []
    whole = _two_epochs(accelerator.prepare(raw), whole_draws)
    for stop in range(1, 2 * len(whole[0]) + 1):
        torch.manual_seed(5), random.seed(5), np.random.seed(5)
        accelerator.free_memory()
        loader = accelerator.prepare(raw)
        position, states = _stopped(loader, stop)
        accelerator.free_memory()
        resumed = accelerator.prepare(raw)
        torch.manual_seed(77)
        resumed.restore(saved(position))
        assert saved(resumed.position()).keys() == position.keys()
        torch.set_rng_state(states[0]), random.setstate(states[1]), np.random.set_state(states[2])
        epoch, done = divmod(stop, len(whole[0]))
        if done == 0:  # within the last batch of an epoch: none is left of it
            epoch, done = epoch - 1, len(whole[0])
        draws: list[float] = []
        found = _two_epochs(resumed, draws)
        wanted = [whole[epoch][done:], *whole[epoch + 1 :]]
        assert found[: len(wanted)] == wanted, (name, stop)
        left = len(whole_draws) - stop
        assert draws[:left] == whole_draws[stop:], (name, stop)


def _stopped(loader, stop: int):
    taken = 0
    while True:
        for _ in loader:
            taken += 1
            torch.rand(1), random.random(), np.random.rand()
            if taken == stop:
                states = torch.get_rng_state(), random.getstate(), np.random.get_state()
                return loader.position(), states


def check_a_position_of_other_ranks_leaves_the_same_samples_out() -> None:
    accelerator = Accelerator()
    for shuffled in (False, True):
        torch.manual_seed(11)
        raw = numbers(23, 3, shuffle=shuffled)
        order = [n for b in numbers(23, 3, shuffle=shuffled) for n in b.tolist()]
        torch.manual_seed(11)
        alone = prepare_data_loader(raw, num_processes=1, process_index=0)
        for taken in (1, 2, 5):
            torch.manual_seed(11)
            iterator = iter(alone)
            list(islice(iterator, taken))
            position = saved(alone.position())
            iterator.close()
            together = accelerator.prepare(raw)
            together.restore(position)
            assert gathered(together, accelerator) == order[3 * taken :]
            accelerator.free_memory()
            again = accelerator.prepare(raw)
            again.restore(position)
            iterator = iter(again)
            next(iterator)
            position = saved(again.position())  # in samples, and in rounds of two ranks
            iterator.close()
            accelerator.free_memory()
            once_more = prepare_data_loader(raw, num_processes=1, process_index=0)
            once_more.restore(position)
            assert [n for b in own(once_more) for n in b] == order[3 * taken + 6 :]


# ---------------------------------------------------------------- torchdata's states
class Counter(IterableDataset):
    """A stream that goes on from where it was by itself."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.next = 0

    def __iter__(self):
        while self.next < self.size:
            self.next += 1
            yield self.next - 1
        self.next = 0

    def state_dict(self) -> dict:
        return {"next": self.next}

    def load_state_dict(self, state: dict) -> None:
        self.next = state["next"]


def check_stateful_loaders_go_on_from_their_state() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    for workers in (0, 1):
        accelerator = Accelerator(dataloader_config=_STATEFUL)
        for shuffled in (False, True):
            raw = numbers(20, 2, shuffle=shuffled, num_workers=workers)
            loader = accelerator.prepare(raw)
            assert isinstance(loader, StatefulDataLoader)
            assert type(loader) is DataLoaderShard
            state, rest = {}, []
            for number, batch in enumerate(loader):
                if number == 1:
                    state = saved(loader.state_dict())
                elif number > 1:
                    rest.append(batch.tolist())
            accelerator.free_memory()
            torch.manual_seed(99 + rank())
            other = accelerator.prepare(raw)
            other.load_state_dict(state)
            assert own(other) == rest
            assert len(own(other)) == 5


def check_a_state_taken_at_the_last_batch_begins_the_next_epoch() -> None:
    accelerator = Accelerator(dataloader_config=_STATEFUL)
    loader = accelerator.prepare(numbers(8, 2))
    state = {}
    for _ in loader:
        state = loader.state_dict()
    assert state["_iterator_finished"]
    loader.load_state_dict(state)
    assert len(own(loader)) == 2


def check_a_dataset_that_keeps_its_place_itself_is_told_it() -> None:
    accelerator = dispatching(use_stateful_dataloader=True)
    loader = accelerator.prepare(DataLoader(Counter(12), 2))
    state = {}
    iterator = iter(loader)
    assert next(iterator).tolist() == [2 * rank(), 2 * rank() + 1]
    state = loader.state_dict()
    iterator.close()
    accelerator.free_memory()
    other = accelerator.prepare(DataLoader(Counter(12), 2))
    other.load_state_dict(state)
    assert own(other) == ([[4, 5], [8, 9]], [[6, 7], [10, 11]])[rank()]


# ---------------------------------------------------------------- all the rest
def check_a_table_is_read_at_once_as_row_by_row() -> None:
    accelerator = Accelerator()
    x, y = torch.randn(11, 3), torch.arange(11)
    part = Subset(Subset(TensorDataset(x, y), range(10, 0, -1)), [0, 2, 4, 6, 8])
    for dataset in (TensorDataset(x, y), part):
        for workers in (0, 1):
            loader = accelerator.prepare(DataLoader(dataset, 2, num_workers=workers))
            plain = prepare_data_loader(
                DataLoader(_Rows(dataset), 2), num_processes=2, process_index=rank()
            )
            for one, other in zip(loader, plain, strict=True):
                assert type(one) is type(other) is list
                assert [t.stride() for t in one] == [t.stride() for t in other]
                assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class _Rows:
    def __init__(self, dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int):
        return self.dataset[index]


def check_random_generators_are_made_alike_when_a_pass_begins() -> None:
    torch.manual_seed(rank())
    accelerator = Accelerator(rng_types=["torch", "generator"])
    for _ in accelerator.prepare(numbers(4, 2)):
        drawn = accelerator.gather(torch.rand(1))
        assert drawn[0] == drawn[1]


def check_ranks_of_a_mesh_that_share_a_model_share_batches() -> None:
    mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp_shard", "tp"))
    loader = prepare_data_loader(numbers(4, 2), torch_device_mesh=mesh)
    assert own(loader) == [[0, 1], [2, 3]]


class Shuffled(IterableDataset):
    """Draws its order when it is iterated, and at each sample whether to give it twice."""

    def __init__(self, size: int, draw) -> None:
        self.size = size
        self.draw = draw

    def __iter__(self):
        order = sorted(range(self.size), key=lambda _: self.draw())
        for number in order:
            yield number
            if self.draw() < 0.3:
                yield number + 1000


def check_streams_that_draw_give_the_same_on_all_ranks() -> None:
    draws = (random.random, np.random.rand, lambda: torch.rand(1).item())
    accelerator = Accelerator()
    for draw in draws:
        for workers in (0, 1):
            torch.manual_seed(rank()), random.seed(rank()), np.random.seed(rank())
            loader = accelerator.prepare(DataLoader(Shuffled(20, draw), 2, num_workers=workers))
            first, second = gathered(loader, accelerator), gathered(loader, accelerator)
            assert sorted(n for n in first if n < 1000) == list(range(20))
            assert sorted(n for n in second if n < 1000) == list(range(20))
            assert len(first) > 20
            assert first != second


def check_ranks_draw_their_own_numbers_while_they_walk_through_a_stream() -> None:
    accelerator = Accelerator()
    torch.manual_seed(rank())
    for _ in accelerator.prepare(DataLoader(Shuffled(6, random.random), 1)):
        drawn = accelerator.gather(torch.rand(1))
        assert drawn[0] != drawn[1]


def check_a_stream_that_draws_is_taken_up_where_it_was() -> None:
    accelerator = Accelerator()
    random.seed(rank())
    loader = accelerator.prepare(DataLoader(Shuffled(12, random.random), 2))
    rest, position = [], {}
    for number, batch in enumerate(loader):
        random.random()
        if number == 1:
            position = saved(loader.position())
        elif number > 1:
            rest.append(batch.tolist())
    accelerator.free_memory()
    random.seed(99 + rank())
    other = accelerator.prepare(DataLoader(Shuffled(12, random.random), 2))
    other.restore(position)
    assert own(other) == rest
