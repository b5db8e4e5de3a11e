"""Loaders on two ranks: who gets which samples, and what gather_for_metrics makes of them."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    WeightedRandomSampler,
)

from nb_accelerate.training import Accelerator, DataLoaderConfiguration, PreparedLoader, set_seed

SIZES = range(1, 21)
BATCHES = range(1, 6)


def rank() -> int:
    return dist.get_rank()


class Stream(IterableDataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


class Named(Dataset):
    """Samples with a tensor, a name and an object of their own."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        return {"x": torch.tensor(index), "name": f"sample {index}"}


def numbers(size: int, batch: int, **options) -> DataLoader:
    return DataLoader(range(size), batch, **options)


def gathered(loader, accelerator: Accelerator) -> list[int]:
    return [n for batch in loader for n in accelerator.gather_for_metrics(batch).tolist()]


def own(loader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


# ---------------------------------------------------------------- the grid
def check_gather_for_metrics_gives_exactly_the_samples() -> None:
    accelerator = Accelerator()
    for size in SIZES:
        for batch in BATCHES:
            loader = accelerator.prepare(numbers(size, batch))
            assert gathered(loader, accelerator) == list(range(size)), (size, batch)
            loader = accelerator.prepare(numbers(size, batch, drop_last=True))
            left = size // (2 * batch) * 2 * batch
            assert gathered(loader, accelerator) == list(range(left)), (size, batch)
    accelerator.free_memory()


def check_gather_for_metrics_keeps_the_order_of_the_sampler() -> None:
    accelerator = Accelerator()
    for size in SIZES:
        for batch in BATCHES:
            plain = numbers(
                size, batch, shuffle=True, generator=torch.Generator().manual_seed(size)
            )
            wanted = [n for b in plain for n in b.tolist()]
            generator = torch.Generator().manual_seed(size + rank())  # rank 0's holds
            loader = numbers(size, batch, shuffle=True, generator=generator)
            assert gathered(accelerator.prepare(loader), accelerator) == wanted, (size, batch)
    accelerator.free_memory()


def check_gather_for_metrics_is_exact_with_split_batches() -> None:
    accelerator = Accelerator(split_batches=True)
    for size in SIZES:
        for batch in (2, 4, 6):
            loader = accelerator.prepare(numbers(size, batch))
            assert gathered(loader, accelerator) == list(range(size)), (size, batch)
    accelerator.free_memory()


def check_gather_for_metrics_is_exact_for_streams() -> None:
    accelerator = Accelerator()
    for size in SIZES:
        for batch in BATCHES:
            loader = accelerator.prepare(DataLoader(Stream(size), batch))
            assert gathered(loader, accelerator) == list(range(size)), (size, batch)
            loader = accelerator.prepare(DataLoader(Stream(size), batch, drop_last=True))
            left = size // (2 * batch) * 2 * batch
            assert gathered(loader, accelerator) == list(range(left)), (size, batch)
    accelerator.free_memory()


def check_gather_for_metrics_is_exact_without_even_batches_while_all_have_one() -> None:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
    loader = accelerator.prepare(numbers(7, 2))  # [0 1] [2 3], then [4 5] and [6] alone
    assert own(loader) == ([[0, 1], [4, 5]], [[2, 3], [6]])[rank()]
    assert gathered(loader, accelerator) == list(range(7))


def check_gather_for_metrics_is_exact_with_loader_workers() -> None:
    accelerator = Accelerator()
    for options in ({}, {"persistent_workers": True}, {"prefetch_factor": 3}):
        loader = accelerator.prepare(numbers(11, 2, num_workers=2, **options))
        for _ in range(2):
            assert gathered(loader, accelerator) == list(range(11))
        for batch in loader:
            accelerator.gather_for_metrics(batch)
            break
        assert gathered(loader, accelerator) == list(range(11))


def check_batches_of_their_own_sizes_are_gathered_exactly() -> None:
    accelerator = Accelerator()
    batches = [[0, 1, 2], [3], [4, 5]]
    loader = accelerator.prepare(DataLoader(range(6), batch_sampler=batches))
    seen = []
    for batch in loader:
        seen += accelerator.gather_for_metrics(batch).tolist()
    assert seen == list(range(6))
    assert own(loader)[-1] == ([4, 5], [0, 1, 2])[rank()]  # rank 1 repeats an early one


class Scored(NamedTuple):
    score: torch.Tensor
    names: list[str]


def check_gather_for_metrics_keeps_every_structure() -> None:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Named(7), 2))
    scores, names, pairs, constants, columns, counts = [], [], [], [], [], []
    for batch in loader:
        data = {
            "scored": Scored(batch["x"] * 2.0, batch["name"]),
            "pairs": [(n, str(n)) for n in batch["x"].tolist()],
            "constant": torch.arange(5),
            "columns": [tuple(batch["x"].tolist()), tuple(batch["name"]), ("-", "-")],
            "count": len(batch["name"]),
        }
        all_of_it = accelerator.gather_for_metrics(data)
        assert type(all_of_it["scored"]) is Scored
        scores += all_of_it["scored"].score.tolist()
        names += all_of_it["scored"].names
        pairs += all_of_it["pairs"]
        constants.append(all_of_it["constant"].tolist())
        columns.append(all_of_it["columns"])  # three of them: no list of two samples
        counts.append(all_of_it["count"])
    assert scores == [2.0 * n for n in range(7)]
    assert names == [f"sample {n}" for n in range(7)]
    assert pairs == [(n, str(n)) for n in range(7)]
    assert constants == [[*range(5), *range(5)]] * 2  # no batch: nothing is cut off
    assert counts == [[2, 2]] * 2
    assert [len(some) for some in columns] == [3, 3]
    assert [n for some in columns for n in some[0]] == list(range(7))


def check_a_loss_is_not_cut_off_with_the_last_batch() -> None:
    accelerator = Accelerator()
    for batch in accelerator.prepare(numbers(5, 4)):
        assert accelerator.gather_for_metrics(batch.float().mean()).shape == (2,)


def check_objects_are_gathered_as_one_list_on_request() -> None:
    accelerator = Accelerator()
    seen = []
    for batch in accelerator.prepare(numbers(5, 2)):
        ragged = [torch.ones(n + 1) for n in batch.tolist()]
        seen += accelerator.gather_for_metrics(ragged, use_gather_object=True)
    assert [len(one) for one in seen] == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------- loops
def check_a_break_leaves_no_state() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=4)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 1.0)
    model = torch.nn.Module()
    model.weight = weight
    model.forward = lambda x: model.weight * x.float().mean()
    model, optimizer, loader = accelerator.prepare(model, optimizer, numbers(16, 2))
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
        break
    assert accelerator.sync_gradients
    optimizer.zero_grad()
    assert weight.grad is None
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1)))
        assert not accelerator.sync_gradients  # the window began anew, outside of any loader
    assert gathered(loader, accelerator) == list(range(16))


def check_an_evaluation_within_training_changes_nothing_for_it() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=3)
    train, evaluation = accelerator.prepare(numbers(16, 2), numbers(5, 2))
    synced, trained = [], []
    for batch in train:
        with accelerator.accumulate():
            synced.append(accelerator.sync_gradients)
        assert gathered(evaluation, accelerator) == list(range(5))
        trained += accelerator.gather_for_metrics(batch).tolist()
    assert synced == [False, False, True, True]
    assert trained == list(range(16))


# ---------------------------------------------------------------- shuffles
def check_ranks_shuffle_alike_whatever_their_seeds() -> None:
    accelerator = Accelerator()
    torch.manual_seed(100 + rank())
    loader = accelerator.prepare(numbers(20, 2, shuffle=True))
    first, second = gathered(loader, accelerator), gathered(loader, accelerator)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    torch.manual_seed(100)
    plain = numbers(20, 2, shuffle=True)
    assert first == [n for batch in plain for n in batch.tolist()]


def check_preparing_a_raw_loader_again_starts_the_same_shuffle_again() -> None:
    raw = numbers(20, 2, shuffle=True)
    orders = []
    for _ in range(2):
        accelerator = Accelerator()
        set_seed(3)
        orders.append(gathered(accelerator.prepare(raw), accelerator))
    assert orders[0] == orders[1]
    assert raw.sampler.generator is None


def check_weighted_samplers_draw_alike() -> None:
    accelerator = Accelerator()
    torch.manual_seed(rank())
    sampler = WeightedRandomSampler([1.0] * 20, 20, replacement=False)
    loader = accelerator.prepare(numbers(20, 2, sampler=sampler))
    assert sorted(gathered(loader, accelerator)) == list(range(20))


def check_the_seedable_sampler_agrees_on_its_seed() -> None:
    torch.manual_seed(rank())
    config = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(dataloader_config=config)
    loader = accelerator.prepare(numbers(20, 2, shuffle=True))
    first, second = gathered(loader, accelerator), gathered(loader, accelerator)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    loader.set_epoch(0)
    assert gathered(loader, accelerator) == first


def check_samplers_and_streams_are_told_the_epoch() -> None:
    class Epochs(SequentialSampler):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    told: list[int] = []
    accelerator = Accelerator()
    loader = accelerator.prepare(numbers(4, 2, sampler=Epochs(range(4))))
    for _ in range(2):
        own(loader)
    for _ in loader:
        break
    loader.set_epoch(7)
    own(loader)
    assert told == [0, 1, 2, 7, 7]  # at once, and when the pass begins


# ---------------------------------------------------------------- kinds of loaders
def check_a_loader_that_is_shared_out_already_is_left_so() -> None:
    accelerator = Accelerator()
    sampler = DistributedSampler(range(8), num_replicas=2, rank=rank(), shuffle=False)
    loader = accelerator.prepare(numbers(8, 2, sampler=sampler))
    assert own(loader) == ([[0, 2], [4, 6]], [[1, 3], [5, 7]])[rank()]


def check_batches_made_by_the_sampler_are_shared_out() -> None:
    accelerator = Accelerator()
    sampler = BatchSampler(range(10), 3, drop_last=False)
    for loader in (
        DataLoader(range(10), batch_sampler=sampler),
        DataLoader(torch.arange(10), sampler=sampler, batch_size=None),
    ):
        shared = accelerator.prepare(loader)
        assert own(shared) == ([[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 0, 1]])[rank()]
        assert gathered(shared, accelerator) == list(range(10))


def check_single_items_are_shared_out_when_nothing_is_batched() -> None:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(torch.arange(6).reshape(3, 2), batch_size=None))
    assert own(loader) == ([[0, 1], [4, 5]], [[2, 3], [0, 1]])[rank()]
    assert gathered(loader, accelerator) == list(range(6))
    stream = accelerator.prepare(DataLoader(Stream(3), batch_size=None))
    assert list(stream) == ([0, 2], [1, 0])[rank()]


def check_streams_are_shared_out_with_loader_workers() -> None:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Stream(7), 2, num_workers=1))
    assert own(loader) == ([[0, 1], [4, 5]], [[2, 3], [6, 0]])[rank()]
    assert gathered(loader, accelerator) == list(range(7))
    split = Accelerator(split_batches=True)
    loader = split.prepare(DataLoader(Stream(6), 4))
    assert own(loader) == ([[0, 1], [4, 5]], [[2, 3], [0, 1]])[rank()]
    assert gathered(loader, split) == list(range(6))


def check_a_prepared_loader_is_a_loader_with_the_right_length() -> None:
    accelerator = Accelerator()
    raw = numbers(11, 2)
    loader = accelerator.prepare(raw)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader, PreparedLoader)
    assert (len(loader), len(raw)) == (3, 6)
    assert (loader.batch_size, loader.total_batch_size, loader.total_dataset_length) == (2, 4, 11)
    assert loader.dataset is raw.dataset
    sent = pickle.loads(pickle.dumps(accelerator.prepare(numbers(4, 2))))
    assert type(sent) is DataLoader
    assert len(sent) == 2
