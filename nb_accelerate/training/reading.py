"""Reading: a loader's batches from wherever a pass begins, with its shuffle drawn as it was."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, cast

import torch

from .batches import Counted, batch_size_of
from .draws import Apart, draw_one, replayed
from .samplers import BatchSamplerShard, Begun, SkipBatchSampler, WithoutFirst
from .sharing import (
    generators_of,
    index_sampler_name,
    index_sampler_of,
    reads_a_stream,
    samplers_of,
    twin_of,
)
from .stateful import is_stateful
from .streams import IterableDatasetShard, SkippedStream

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator, Sequence

    from torch.utils.data import DataLoader

    from .draws import RandomStates

__all__ = ["ShareReader", "Start", "read", "skipping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a pass begins.

    Attributes:
        epoch: what the samplers are told.
        skipped: this many of a rank's batches are left out.
        offset: samples that are left out before the rest is shared out; batches, where the
            sampler's batches have no common size.
        random: what its shuffle was drawn from, to draw it again; None draws afresh.
        generators: likewise, the states of `generators_of` the loader.
        told: batches that a stateful loader has been told of, so that it leaves them out itself.
        alike: what a stream that all ranks walk through draws from, on all of them.
    """

    epoch: int = 0
    skipped: int = 0
    offset: int = 0
    random: RandomStates | None = None
    generators: Sequence[torch.Tensor] = ()
    told: int = 0
    alike: RandomStates | None = None


class ShareReader:
    """Reads this rank's share."""

    def __init__(self, twin: DataLoader[Any]) -> None:
        self.twin = twin

    def __len__(self) -> int:
        return len(self.twin)

    def begin(self, start: Start) -> Iterator[Counted]:
        """The batches from there on."""
        return read(self.twin, start)


def read(loader: DataLoader[Any], start: Start, *, keep_first: int = 0) -> Iterator[Counted]:
    """The batches of `loader` from `start` on.

    Args:
        loader: whose batches `start` counts.
        start: where to begin.
        keep_first: give as many of the batches that are skipped, at the very beginning.
    """
    later = _later(loader, start, keep_first)
    reading, source = _begun(later, start)
    if _skips_here(loader):
        source = chain(islice(source, keep_first), islice(source, start.skipped - keep_first, None))
    shard = next((s for s in samplers_of(later) if isinstance(s, BatchSamplerShard)), None)
    counted = _counted(source, None if shard is None else shard.counts, start)
    if not is_stateful(later):
        return counted
    # Not of `later`: asked for its state, a loader that is not iterated begins to be.
    return (one._replace(state=reading.state_dict()) for one in counted)  # type: ignore[attr-defined]


def _counted(
    source: Iterator[Any], notes: deque[tuple[int | None, int | None]] | None, start: Start
) -> Iterator[Counted]:
    """The batches with what a shard notes of each, from the first one on, that are skipped too."""
    if notes is None:
        for batch in source:
            yield batch if type(batch) is Counted else Counted(batch)
        return
    skipped = max(start.skipped, start.told)
    for batch in source:
        while skipped:
            notes.popleft()
            skipped -= 1
        size, real = notes.popleft()
        if size is None and real is not None:
            size = batch_size_of(batch)
        yield Counted(batch, size, real)


# ---------------------------------------------------------------- beginning later
def skipping(loader: DataLoader[Any], batches: int) -> DataLoader[Any]:
    """A loader like `loader` whose every pass leaves out its first batches."""
    return _later(loader, Start(skipped=batches), 0) if batches else loader


def _later(loader: DataLoader[Any], start: Start, keep_first: int) -> DataLoader[Any]:
    if not start.skipped and not start.offset:
        return loader
    if reads_a_stream(loader):
        return loader if _skips_here(loader) else _later_stream(loader, start, keep_first)
    batches = index_sampler_of(loader)
    if start.offset:
        batches = _resharded(batches, start.offset)
    if start.skipped:
        batches = SkipBatchSampler(batches, start.skipped, keep_first=keep_first)
    return twin_of(loader, **{index_sampler_name(loader): batches})


def _resharded(batches: Any, offset: int) -> Any:  # noqa: ANN401  # any sampler
    if isinstance(batches, BatchSamplerShard):
        shard = copy.copy(batches)
        shard.batch_sampler = _without_first(batches.batch_sampler, offset)
        return shard
    return _without_first(batches, offset)


def _without_first(batches: Any, offset: int) -> Any:  # noqa: ANN401
    if getattr(batches, "batch_size", None) is None:
        return SkipBatchSampler(batches, offset)
    return WithoutFirst(batches, offset)


def _later_stream(loader: DataLoader[Any], start: Start, keep_first: int) -> DataLoader[Any]:
    stream = cast("Any", loader.dataset)
    if isinstance(stream, IterableDatasetShard):
        shard = copy.copy(stream)
        shard.offset, shard.skipped_blocks = start.offset, start.skipped
        return twin_of(loader, dataset=shard)
    size = loader.batch_size or 1
    later = SkippedStream(stream, start.offset) if start.offset else stream
    skipped = SkippedStream(later, start.skipped * size, keep_first=keep_first * size)
    return twin_of(loader, dataset=skipped)


def _skips_here(loader: DataLoader[Any]) -> bool:
    """Whether batches must be read to be skipped: each worker has a stream of its own."""
    return reads_a_stream(loader) and loader.num_workers > 1


# ---------------------------------------------------------------- drawing again
_NONE = object()


def _begun(loader: DataLoader[Any], start: Start) -> tuple[Iterator[Any], Iterator[Any]]:
    """The loader's own iterator, and what to read instead of it."""
    if start.alike is not None:
        return _drawn_alike(loader, start)
    if start.random is not None:
        return _replayed(loader, start)
    source = iter(loader)
    return source, source


def _replayed(loader: DataLoader[Any], start: Start) -> tuple[Iterator[Any], Iterator[Any]]:
    """Iterate `loader`, its order drawn from where it was drawn from then.

    What is drawn now does not count: the generators have gone on since then.
    """
    generators = generators_of(loader)
    assert start.random is not None  # noqa: S101  # the caller has looked
    with replayed(start.random):
        for generator, state in zip(generators, start.generators, strict=False):
            generator.set_state(state)
        if reads_a_stream(loader):
            source = iter(loader)
            first = next(source, _NONE)
            return source, source if first is _NONE else chain([first], source)
        draw_base_seed(loader)
        indices = iter(index_sampler_of(loader))
        first = next(indices, _NONE)
        begun = indices if first is _NONE else chain([first], indices)
        drawn = [generator.get_state() for generator in generators]
        source = iter(_with_begun(loader, begun))
        for generator, state in zip(generators, drawn, strict=True):
            generator.set_state(state)
    return source, source


def _drawn_alike(loader: DataLoader[Any], start: Start) -> tuple[Iterator[Any], Iterator[Any]]:
    """Iterate a stream that gives the same on all ranks, also where it draws random numbers.

    What it draws itself does not count for the ranks' own generators, which may differ.
    """
    assert start.alike is not None  # noqa: S101  # the caller has looked
    own = Apart(start.alike)
    source, first, drawn = own.begun(loader)
    if start.random is None:
        draw_base_seed(loader)
        draw_one(drawn)
    if drawn and not loader.num_workers:  # else to look at each batch takes longer than most do
        return source, own.went_on(source, first)
    return source, chain(first, source)


def _with_begun(loader: DataLoader[Any], indices: Iterator[Any]) -> DataLoader[Any]:
    return twin_of(loader, **{index_sampler_name(loader): Begun(indices)})


def draw_base_seed(loader: DataLoader[Any]) -> None:
    """Draw what a DataLoader draws for its workers whenever it is iterated."""
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
