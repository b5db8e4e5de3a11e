"""Loaders: each rank's share of a DataLoader, on its device, with the same shuffle everywhere."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
)

from nb_accelerate.errors import SpecError

from .models import itself
from .nested import Anything, Nested, flatten, map_leaves
from .samplers import (
    BatchSamplerShard,
    IterableDatasetShard,
    Repeated,
    SeedableRandomSampler,
    SharedShuffle,
)

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from .collectives import Collectives
    from .passes import Pass, Passes

__all__ = [
    "DataLoaderConfiguration",
    "PreparedLoader",
    "Sharding",
    "batch_size_of",
    "on_device",
    "prepare_loader",
]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class DataLoaderConfiguration:
    """How `prepare` shares out loaders. The fields are Accelerate's.

    Attributes:
        split_batches: the loader's batch_size is that of all processes together.
        dispatch_batches: rank 0 reads for all; not supported yet, every rank reads its share.
        even_batches: fill the last batches up, so that all processes get as many and as large ones.
        use_seedable_sampler: the shuffle follows from a seed and the epoch alone.
        data_seed: that seed; None takes the one that torch was seeded with.
        non_blocking: copy batches to the device without waiting for the copy.
        use_stateful_dataloader: not supported yet.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False

    def __post_init__(self) -> None:
        for name in ("dispatch_batches", "use_stateful_dataloader"):
            if getattr(self, name):
                raise SpecError(f"DataLoaderConfiguration({name}=True) is not supported yet.")


@dataclass(frozen=True, slots=True)
class Sharding:
    """Who shares a loader, and how."""

    config: DataLoaderConfiguration
    collectives: Collectives

    @property
    def ranks(self) -> tuple[int, int]:
        """(num_processes, process_index), as the shards want them."""
        return self.collectives.world_size, self.collectives.rank


def prepare_loader(
    loader: DataLoader[T_co], sharding: Sharding, passes: Passes, device: torch.device | None
) -> PreparedLoader[T_co]:
    """This rank's share of `loader`; `device` None leaves its batches where they are."""
    place = None
    if device is not None:
        place = _Placer(device, non_blocking=sharding.config.non_blocking)
    return PreparedLoader(loader, _shared_out(loader, sharding), sharding, passes, place)


class PreparedLoader(DataLoader[T_co], Generic[T_co]):
    """A DataLoader's share of one rank.

    It looks one batch ahead: that batch goes to the device while the current one is computed, and
    the last one is known as the last while it is in use. What travels of it by pickle is the
    loader that was prepared, for the process where it arrives has another share.

    Attributes:
        base_dataloader: what was prepared.
        iteration: passes begun so far; the epoch that the samplers are told.
    """

    def __init__(
        self,
        loader: DataLoader[T_co],
        twin: DataLoader[T_co],
        sharding: Sharding,
        passes: Passes,
        place: Callable[[Nested], Nested] | None,
    ) -> None:
        # DataLoader's own constructor is not called: `twin` is the loader that works.
        self.base_dataloader = loader
        self.iteration = 0
        self._twin = twin
        self._sharding = sharding
        self._passes = passes
        self._place = place or itself

    def __getattr__(self, name: str) -> Anything:
        if name in ("base_dataloader", "_twin"):  # not yet there: while it is being copied
            raise AttributeError(name)
        unshared = ("dataset", "batch_size", "collate_fn")
        return getattr(self.base_dataloader if name in unshared else self._twin, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self.base_dataloader,)

    def __len__(self) -> int:
        return len(self._twin)

    @property
    def total_batch_size(self) -> int:
        """Samples that all processes together take at a time."""
        size: int = getattr(_index_sampler_of(self.base_dataloader), "batch_size", 1)
        return size if self._sharding.config.split_batches else size * self._sharding.ranks[0]

    @property
    def total_dataset_length(self) -> int:
        """Samples of the whole dataset."""
        return len(cast("Any", self.dataset))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass tells the samplers and the dataset."""
        self.iteration = epoch

    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override]  # we give a plain iterator
        with self._passes.begun() as current:
            self._tell_epoch()
            self.iteration += 1
            self._agree_on_generator()
            yield from self._batches(current)

    def _batches(self, current: Pass) -> Iterator[T_co]:
        source = iter(self._twin)
        counts = getattr(_index_sampler_of(self._twin), "counts", None)
        upcoming = self._fetched(source, counts)
        while upcoming is not None:
            batch, current.size, current.real = upcoming
            upcoming = self._fetched(source, counts)
            current.is_last = upcoming is None
            yield batch

    def _fetched(
        self, source: Iterator[Any], counts: deque[tuple[int | None, int | None]] | None
    ) -> _Counted | None:
        """The next batch, placed."""
        try:
            batch = next(source)
        except StopIteration:
            return None
        size, real = counts.popleft() if counts else (None, None)
        if type(batch) is _Counted:
            batch, size, real = batch
        if size is None and real is not None:
            size = batch_size_of(batch)
        return _Counted(self._place(batch), size, real)

    def _tell_epoch(self) -> None:
        sampler = _index_sampler_of(self._twin)
        while sampler is not None:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.iteration)
            sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        if hasattr(self._twin.dataset, "set_epoch"):
            self._twin.dataset.set_epoch(self.iteration)

    def _agree_on_generator(self) -> None:
        """Give every rank rank 0's state of the generator that the user's sampler draws from."""
        generator = _generator_of(self.base_dataloader)
        if generator is not None and self._sharding.ranks[0] > 1:
            state = generator.get_state()
            generator.set_state(self._sharding.collectives.broadcast(state))


class _Counted(NamedTuple):
    """A batch and what `Pass` says of it; a tuple, so that a loader's worker can pin it."""

    batch: Anything
    size: int | None
    real: int | None


class _CountingCollate:
    """A stream's collate_fn that counts the samples that only fill up."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Anything) -> _Counted:
        if not isinstance(samples, list):  # a loader without batch_size: one item at a time
            repeated = isinstance(samples, Repeated)
            item = samples.sample if isinstance(samples, Repeated) else samples
            return _Counted(self.collate(item), None, 0 if repeated else None)
        bare = [s.sample if isinstance(s, Repeated) else s for s in samples]
        real = sum(not isinstance(s, Repeated) for s in samples)
        return _Counted(self.collate(bare), len(bare), real if real < len(bare) else None)


class _Placer:
    """Puts what a loader gives onto a device."""

    def __init__(self, device: torch.device, *, non_blocking: bool) -> None:
        self.device = device
        self.non_blocking = non_blocking

    def __call__(self, batch: Nested) -> Nested:
        return on_device(batch, self.device, non_blocking=self.non_blocking)


def on_device(data: Nested, device: torch.device, *, non_blocking: bool = False) -> Nested:
    """`data` with all that can move, tensors or not, on `device`; the rest passes as it is."""

    def move(leaf: Nested) -> Nested:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    return map_leaves(move, data, is_leaf=lambda leaf: hasattr(leaf, "to"))


def batch_size_of(batch: Nested) -> int | None:
    """Samples in a batch: the first axis of its first tensor, else the length of a plain list."""
    leaves, _ = flatten(batch)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    return len(batch) if isinstance(batch, list | tuple) else None


# ---------------------------------------------------------------- one rank's twin of a loader
def _shared_out(loader: DataLoader[T_co], sharding: Sharding) -> DataLoader[T_co]:
    """A twin of `loader` that reads this rank's share.

    A shallow copy with other samplers, so that it keeps its class and all settings, also those
    that a newer torch may add.
    """
    if isinstance(loader.dataset, IterableDataset):
        return _shared_stream(loader, sharding)
    inner = _with_shared_shuffle(_index_sampler_of(loader), sharding)
    if sharding.ranks[0] > 1 and not _is_sharded(inner):
        config = sharding.config
        inner = BatchSamplerShard(inner, *sharding.ranks, config.split_batches, config.even_batches)
    return _twin(loader, **{_index_sampler_name(loader): inner})


def _shared_stream(loader: DataLoader[T_co], sharding: Sharding) -> DataLoader[T_co]:
    if sharding.ranks[0] == 1:
        return _twin(loader)
    shard = IterableDatasetShard(
        cast("Any", loader.dataset),
        loader.batch_size or 1,
        loader.drop_last,
        *sharding.ranks,
        sharding.config.split_batches and loader.batch_size is not None,
        even_batches=sharding.config.even_batches,
        mark_repeated=True,
    )
    changed = {"dataset": shard, "collate_fn": _CountingCollate(loader.collate_fn)}
    if loader.batch_size is not None:
        sizes = BatchSampler(loader.sampler, shard.per_rank, loader.drop_last)
        changed |= {"batch_size": shard.per_rank, "batch_sampler": sizes}
    return _twin(loader, **changed)


def _twin(loader: DataLoader[T_co], **changed: Anything) -> DataLoader[T_co]:
    twin = copy.copy(loader)
    # Past DataLoader.__setattr__, which refuses to change these. in_order: a rank's batches must
    # come in the sampler's order, or what only fills up could not be told from what is real.
    twin.__dict__.update(changed, _iterator=None, in_order=True)
    return twin


def _index_sampler_name(loader: DataLoader[Any]) -> str:
    return "sampler" if loader.batch_sampler is None else "batch_sampler"


def _index_sampler_of(loader: DataLoader[Any]) -> Anything:
    """What gives the indices of one batch at a time."""
    return getattr(loader, _index_sampler_name(loader))


def _with_shared_shuffle(batches: Anything, sharding: Sharding) -> Anything:
    """The batch sampler, or plain sampler, with a shuffle that is the same on every rank."""
    if not hasattr(batches, "sampler"):
        return _shuffled_alike(batches, sharding)
    shared = copy.copy(batches)
    shared.sampler = _shuffled_alike(batches.sampler, sharding)
    return shared


def _shuffled_alike(sampler: Anything, sharding: Sharding) -> Anything:
    config, collectives = sharding.config, sharding.collectives
    if config.use_seedable_sampler and type(sampler) is RandomSampler:
        seeded = SeedableRandomSampler(
            sampler.data_source, sampler.replacement, sampler.num_samples,
            data_seed=config.data_seed,
        )  # fmt: skip
        seeded.initial_seed = collectives.agreed(seeded.initial_seed)
        return seeded
    if hasattr(sampler, "generator") and sampler.generator is None:
        return SharedShuffle(sampler, collectives.agreed)
    return sampler


def _generator_of(loader: DataLoader[Any]) -> torch.Generator | None:
    """The user's own generator, that its sampler or its stream draws from."""
    sampler = _index_sampler_of(loader)
    for owner in (getattr(sampler, "sampler", sampler), loader.dataset):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            return generator
    return None


def _is_sharded(batches: Anything) -> bool:
    """Whether the user has shared it out already."""
    sampler = batches.sampler if isinstance(batches, BatchSampler) else batches
    return isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1
