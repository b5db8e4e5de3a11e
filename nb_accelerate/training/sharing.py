"""Sharing: how a DataLoader becomes a twin that reads one rank's share, or all of it for others."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
)

from .samplers import BatchSamplerShard, SeedableRandomSampler, SharedShuffle, require_divisible
from .stateful import require_torchdata, stateful_twin
from .streams import CountingCollate, IterableDatasetShard, is_shared_stream, own_part_of
from .tables import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .collectives import Collectives
    from .nested import Anything

__all__ = [
    "DataLoaderConfiguration",
    "Sharding",
    "draws_by_torch_alone",
    "generators_of",
    "index_sampler_name",
    "index_sampler_of",
    "reads_a_stream",
    "samplers_of",
    "share_of",
    "twin_of",
    "whole_of",
]

T_co = TypeVar("T_co", covariant=True)


@dataclass
class DataLoaderConfiguration:
    """How `prepare` shares out loaders. The fields are Accelerate's.

    Attributes:
        split_batches: the loader's batch_size is that of all processes together.
        dispatch_batches: rank 0 reads for all. None does not: every rank reads its share, of a
            stream too, which it walks through as a whole. A stream that does not give the same on
            every rank needs True.
        even_batches: fill the last batches up, so that all processes get as many and as large ones.
        use_seedable_sampler: the shuffle follows from a seed and the epoch alone.
        data_seed: that seed; None takes the one that torch was seeded with.
        non_blocking: copy batches to the device without waiting for the copy.
        use_stateful_dataloader: read with torchdata's StatefulDataLoader.

    Raises:
        TorchdataMissing: it is to be used, but is not there.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False

    def __post_init__(self) -> None:
        if self.use_stateful_dataloader:
            require_torchdata()


@dataclass(frozen=True, slots=True)
class Sharding:
    """Who shares a loader, and how.

    Attributes:
        among: (num_processes, process_index), where these are not the ranks of `collectives`.
        rng_types: random generators that all ranks take from rank 0 when a pass begins.
        slice_fn: cuts what rank 0 has read for all; None cuts lists and tensors.
    """

    config: DataLoaderConfiguration
    collectives: Collectives
    among: tuple[int, int] | None = None
    rng_types: tuple[str, ...] = ("generator",)
    slice_fn: Callable[..., Any] | None = field(default=None)

    @property
    def ranks(self) -> tuple[int, int]:
        """(num_processes, process_index), as the shards want them."""
        return self.among or (self.collectives.world_size, self.collectives.rank)


# ---------------------------------------------------------------- twins
def share_of(loader: DataLoader[T_co], sharding: Sharding) -> DataLoader[T_co]:
    """A twin of `loader` that reads this rank's share.

    A shallow copy with other samplers, so that it keeps its class and all settings, also those
    that a newer torch may add.
    """
    loader = stateful_twin(loader) if sharding.config.use_stateful_dataloader else loader
    if reads_a_stream(loader):
        return _shared_stream(loader, sharding)
    inner = _with_shuffle(loader, sharding)
    if sharding.ranks[0] > 1 and not _is_sharded(inner):
        config = sharding.config
        inner = BatchSamplerShard(inner, *sharding.ranks, config.split_batches, config.even_batches)
    return twin_of(loader, **{index_sampler_name(loader): inner}, **at_once(loader))


def whole_of(loader: DataLoader[T_co], sharding: Sharding) -> DataLoader[T_co]:
    """A twin of `loader` that reads all of it, for rank 0 to share it out."""
    loader = stateful_twin(loader) if sharding.config.use_stateful_dataloader else loader
    if sharding.config.split_batches:
        require_divisible(getattr(index_sampler_of(loader), "batch_size", None), sharding.ranks[0])
    if reads_a_stream(loader):
        return twin_of(loader)
    inner = _with_seeds(index_sampler_of(loader), sharding)
    return twin_of(loader, **{index_sampler_name(loader): inner}, **at_once(loader))


def twin_of(loader: DataLoader[T_co], **changed: Anything) -> DataLoader[T_co]:
    """A shallow copy of `loader`, changed."""
    twin = copy.copy(loader)
    # Past DataLoader.__setattr__, which refuses to change these. in_order: a rank's batches must
    # come in the sampler's order, or what only fills up could not be told from what is real.
    twin.__dict__.update(changed, _iterator=None, in_order=True)
    return twin


def _shared_stream(loader: DataLoader[T_co], sharding: Sharding) -> DataLoader[T_co]:
    stream = cast("Any", loader.dataset)
    if sharding.ranks[0] == 1 or is_shared_stream(stream):
        return twin_of(loader)
    if not sharding.config.split_batches:
        part = own_part_of(stream, *sharding.ranks)
        if part is not None:
            return twin_of(loader, dataset=part)
    shard = IterableDatasetShard(
        stream,
        loader.batch_size or 1,
        loader.drop_last,
        *sharding.ranks,
        sharding.config.split_batches and loader.batch_size is not None,
        even_batches=sharding.config.even_batches,
        mark_repeated=True,
    )
    changed = {"dataset": shard, "collate_fn": CountingCollate(loader.collate_fn)}
    if loader.batch_size is not None:
        sizes = BatchSampler(loader.sampler, shard.per_rank, loader.drop_last)
        changed |= {"batch_size": shard.per_rank, "batch_sampler": sizes}
    return twin_of(loader, **changed)


# ---------------------------------------------------------------- what a loader reads by
def reads_a_stream(loader: DataLoader[Any]) -> bool:
    """Whether its dataset has no indices."""
    return isinstance(loader.dataset, IterableDataset)


def index_sampler_name(loader: DataLoader[Any]) -> str:
    """The attribute that holds its `index_sampler_of`."""
    return "sampler" if loader.batch_sampler is None else "batch_sampler"


def index_sampler_of(loader: DataLoader[Any]) -> Anything:
    """What gives the indices of one batch at a time."""
    return getattr(loader, index_sampler_name(loader))


def samplers_of(loader: DataLoader[Any]) -> Iterator[Any]:
    """Its samplers, from the outermost to the innermost."""
    sampler = index_sampler_of(loader)
    while sampler is not None:
        yield sampler
        inner = vars(sampler) if hasattr(sampler, "__dict__") else {}
        sampler = inner.get("batch_sampler") or inner.get("sampler")


def generators_of(loader: DataLoader[Any]) -> list[torch.Generator]:
    """The user's own generators, that its samplers or its stream draw from; each once."""
    owners = [*samplers_of(loader), loader.dataset]
    if reads_a_stream(loader):  # whose workers are seeded from the loader's
        owners.append(loader)
    seeded = next((s for s in owners if isinstance(s, SeedableRandomSampler | SharedShuffle)), None)
    if seeded is not None:  # it makes generators as it needs them
        owners = [*owners[: owners.index(seeded)], loader.dataset]
    found = [vars(owner).get("generator") for owner in owners if hasattr(owner, "__dict__")]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def draws_by_torch_alone(loader: DataLoader[Any]) -> bool:
    """Whether no code of the user's draws the order, who might ask `random` or numpy."""
    known = ("torch.", "torchdata.", "nb_accelerate.")
    return not reads_a_stream(loader) and all(
        type(sampler).__module__.startswith(known) for sampler in samplers_of(loader)
    )


def _with_shuffle(loader: DataLoader[Any], sharding: Sharding) -> Anything:
    """The index sampler, with a shuffle that is the same on every rank."""
    batches = _with_seeds(index_sampler_of(loader), sharding)
    return _with_sampler(batches, lambda sampler: _drawn_alike(sampler, sharding))


def _with_seeds(batches: Anything, sharding: Sharding) -> Anything:
    return _with_sampler(batches, lambda sampler: _seeded(sampler, sharding))


def _with_sampler(batches: Anything, change: Callable[[Any], Any]) -> Anything:
    """The batch sampler with another sampler in it, or another plain sampler."""
    if not hasattr(batches, "sampler"):
        return change(batches)
    changed = change(batches.sampler)
    if changed is batches.sampler:
        return batches  # the user's own, that may hear of epochs
    twin = copy.copy(batches)
    twin.sampler = changed
    return twin


def _seeded(sampler: Anything, sharding: Sharding) -> Anything:
    config = sharding.config
    if not config.use_seedable_sampler or type(sampler) is not RandomSampler:
        return sampler
    seeded = SeedableRandomSampler(
        sampler.data_source, sampler.replacement, sampler.num_samples, data_seed=config.data_seed
    )
    seeded.initial_seed = sharding.collectives.agreed(seeded.initial_seed)
    return seeded


def _drawn_alike(sampler: Anything, sharding: Sharding) -> Anything:
    draws = hasattr(sampler, "generator") and sampler.generator is None
    if not draws or isinstance(sampler, SeedableRandomSampler):
        return sampler
    return SharedShuffle(sampler, sharding.collectives.agreed)


def _is_sharded(batches: Anything) -> bool:
    """Whether the user has shared it out already."""
    sampler = getattr(batches, "sampler", batches)
    return isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1
