"""Going on in the midst of an epoch: loaders of all kinds, open windows, and the habits of old."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from resuming import BATCH, Route, Trip, left_at, shared_folder, taken_up
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from nb_accelerate.replica import Replica, acting_as
from nb_accelerate.training import Accelerator, DataLoaderConfiguration, set_seed

SAMPLES = 38


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(SAMPLES))


class Remembering(IterableDataset):
    """Knows itself how far it is, as datasets of torchdata do: what it gives is not repeated."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self):
        while self.given < SAMPLES:
            self.given += 1
            yield torch.tensor(self.given - 1)
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state) -> None:
        self.given = state["given"]


class Numbers(Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor(index)


def passes(loader, number=2) -> list[list]:
    return [[batch.tolist() for batch in loader] for _ in range(number)]


def loader_of(kind: str):
    """A prepared loader, and the Accelerator that has it."""
    set_seed(4)
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader="stateful" in kind, dispatch_batches="dispatched" in kind
        )
    )
    data = Stream() if "stream" in kind else Numbers()
    data = Remembering() if "remembering" in kind else data
    workers = 1 if "workers" in kind else 0
    shuffle = None if "stream" in kind else "in order" not in kind
    loader = DataLoader(data, batch_size=3, shuffle=shuffle, num_workers=workers)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata's own
        return accelerator, accelerator.prepare(loader)


# ---------------------------------------------------------------- loaders
def check_a_loader_of_any_kind_gives_what_was_left_and_then_whole_passes() -> None:
    for kind in (
        "shuffled", "in order", "workers", "stream", "workers stream", "dispatched",
        "dispatched stream", "stateful", "stateful in order", "stateful stream",
        "stateful remembering stream",
    ):  # fmt: skip
        _assert_goes_on(kind)


def _assert_goes_on(kind: str) -> None:
    with shared_folder() as folder:
        accelerator, loader = loader_of(kind)
        passes(loader, 1)
        whole = []
        for batch in loader:
            whole.append(batch.tolist())
            accelerator.save_state(folder / str(len(whole)))
        after = passes(loader, 1)
        for number in (1, len(whole) // 2, len(whole) - 1, len(whole)):
            again, loader = loader_of(kind)
            set_seed(77)
            again.load_state(folder / str(number))
            rest, next_pass = passes(loader)
            assert rest == whole[number:], (kind, number)
            assert next_pass == after[0], (kind, number)


def check_between_two_passes_the_next_one_is_whole() -> None:
    with shared_folder() as folder:
        accelerator, loader = loader_of("shuffled")
        passes(loader, 1)
        accelerator.save_state(folder)
        expected = passes(loader)
        again, loader = loader_of("shuffled")
        again.load_state(folder)
        assert passes(loader) == expected


def check_skipping_by_hand_takes_the_place_of_going_on_and_does_not_add_to_it() -> None:
    route = Route()
    whole = Trip(route).go()
    length = len(Trip(route).loader)
    for number in (2, 4):
        with shared_folder() as folder:
            left_at(number, route, folder)
            trip = taken_up(route, folder)
            rest = trip.accelerator.skip_first_batches(trip.loader, number)
            seen = [ids.tolist() for ids, _, _ in rest]
            assert seen == [step[0] for step in whole.steps[number:length]]
            assert len(list(trip.loader)) == length


def check_a_folder_without_positions_begins_an_epoch() -> None:
    route = Route(samples=4 * BATCH * dist.get_world_size())
    with shared_folder() as folder:
        left_at(2, route, folder)
        if dist.get_rank() == 0:
            for name in ("sampler.bin", "sampler_1.bin", "nb_accelerate.json"):
                (folder / name).unlink()
        dist.barrier()
        trip = taken_up(route, folder)
        ids = trip.accelerator.gather(torch.cat([ids for ids, _, _ in trip.loader]))
        assert sorted(ids.tolist()) == list(range(route.samples))


def check_what_the_process_did_before_loading_does_not_matter() -> None:
    route = Route()
    whole = Trip(route).go()
    with shared_folder() as folder:
        left_at(3, route, folder)
        trip = Trip(route, seed=31)
        trip.go()
        for _ in trip.loader:
            break  # a pass that is left open
        trip.steps.clear()
        trip.accelerator.load_state(folder)
        trip.go()
    assert trip.steps == whole.steps[3:]
    assert trip.weights == whole.weights


# ---------------------------------------------------------------- windows
def check_a_window_that_was_open_goes_on_with_its_gradients() -> None:
    route = Route(accumulation=4)
    whole = Trip(route).go()
    with shared_folder() as folder:
        trip = left_at(3, route, folder)
        expected = gradients_of(trip)
        trip = taken_up(route, folder)
        assert gradients_of(trip) == expected
        assert trip.go().weights == whole.weights


def check_gradients_of_before_loading_are_dropped() -> None:
    route = Route(accumulation=2)
    with shared_folder() as folder:
        trip = left_at(4, route, folder)
        trip.model(torch.ones(1, 4)).sum().backward()
        trip.accelerator.load_state(folder)
        assert all(parameter.grad is None for parameter in trip.model.parameters())


def check_other_ranks_go_on_with_the_mean_of_all_gradients() -> None:
    route = Route(accumulation=4, samples=60)
    with shared_folder() as folder:
        trip = left_at(2, route, folder)
        mean = trip.accelerator.reduce([torch.tensor(g) for g in gradients_of(trip)], "mean")
        with acting_as(Replica()):
            alone = taken_up(route, folder)
            assert alone.accelerator.step == 2
            assert alone.accelerator._here.accumulation.windows[0].count == 2
        torch.testing.assert_close([torch.tensor(g) for g in gradients_of(alone)], mean)


def check_windows_that_are_weighed_by_tokens_go_on() -> None:
    def training(seed: int):
        torch.manual_seed(seed)
        accelerator = Accelerator(gradient_accumulation_steps=3)
        model, optimizer = nn.Linear(2, 1), None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return accelerator, *accelerator.prepare(model, optimizer)

    def steps(accelerator, model, optimizer, numbers) -> None:
        for number in numbers:
            tokens = 1 + number + dist.get_rank()
            x = torch.full((tokens, 2), 0.5 + number)
            with accelerator.accumulate(model, tokens=tokens):
                accelerator.backward(F.mse_loss(model(x), torch.ones(tokens, 1), reduction="sum"))
                optimizer.step()
                optimizer.zero_grad()

    with shared_folder() as folder:
        accelerator, model, optimizer = training(0)
        steps(accelerator, model, optimizer, range(5))
        accelerator.save_state(folder)
        steps(accelerator, model, optimizer, range(5, 9))
        again, other, optimizer = training(1)
        again.load_state(folder)
        steps(again, other, optimizer, range(5, 9))
        for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def gradients_of(trip: Trip) -> list[list[float]]:
    return [parameter.grad.tolist() for parameter in trip.model.parameters()]
