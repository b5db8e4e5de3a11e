"""Samplers: which indices, in which order, fall to which rank."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from nb_accelerate.errors import SpecError

if TYPE_CHECKING:
    from .nested import Anything

__all__ = [
    "BatchSamplerShard",
    "Begun",
    "SeedableRandomSampler",
    "SharedShuffle",
    "SkipBatchSampler",
    "WithoutFirst",
    "require_divisible",
]


class BatchSamplerShard(Sampler[Any]):
    """One rank's share of a batch sampler.

    Batches go round: batch k to rank k % num_processes. With `split_batches` each batch is cut
    into num_processes slices instead. What is missing in the last round is filled up from the
    first one (`even_batches`), or the round is left out when the batch sampler drops its last.

    Attributes:
        counts: for each batch of the newest pass, how many samples it has and how many of them
            are real (None: all). Who reads the batches takes these off from the left.
    """

    def __init__(
        self,
        batch_sampler: Iterable[Any],
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,  # noqa: FBT001, FBT002  # upstream's order
        even_batches: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size: int | None = getattr(batch_sampler, "batch_size", None)
        self.drop_last: bool = getattr(batch_sampler, "drop_last", False)
        self.counts: deque[tuple[int | None, int | None]] = deque()
        if split_batches:
            require_divisible(self.batch_size, num_processes)

    @property
    def total_length(self) -> int:
        """Batches of the whole batch sampler."""
        return len(cast("Sized", self.batch_sampler))

    def __len__(self) -> int:
        if self.split_batches:
            return self.total_length - self._misses_the_tail()
        whole, rest = divmod(self.total_length, self.num_processes)
        if self.drop_last or not rest:
            return whole
        return whole + 1 if self.even_batches or self.process_index < rest else whole

    def __iter__(self) -> Iterator[Any]:
        self.counts = deque()
        return self._noted(self.counts)

    def _noted(self, counts: deque[tuple[int | None, int | None]]) -> Iterator[Any]:
        for batch, real in self._shares():
            is_sized = type(batch) is list or isinstance(batch, Sized)
            counts.append((len(batch) if is_sized else None, real))
            yield batch

    def _shares(self) -> Iterator[tuple[Any, int | None]]:
        """This rank's batches, each with its number of real samples (None: all)."""
        if type(self.batch_sampler) is BatchSampler and not self.split_batches:
            return self._shares_of_indices(self.batch_sampler)
        return self._shares_of_batches()

    def _shares_of_indices(self, sampler: BatchSampler) -> Iterator[tuple[Any, int | None]]:
        """The same as of its batches, without making those of the other ranks."""
        source, size = iter(sampler.sampler), sampler.batch_size
        start, length = size * self.process_index, size * self.num_processes
        first: list[Any] = []
        while indices := list(islice(source, length)):
            first = first or [indices]
            if len(indices) == length:
                yield indices[start : start + size], None
            elif not self.drop_last:
                yield from self._last_round([indices], first)

    def _shares_of_batches(self) -> Iterator[tuple[Any, int | None]]:
        source = iter(self.batch_sampler)
        per_round = 1 if self.split_batches else self.num_processes
        first: list[Any] = []
        while batches := list(islice(source, per_round)):
            first = first or batches
            if len(batches) == per_round and self._is_full(batches[-1]):
                yield self._own_of(batches), None
            elif not self.drop_last:
                yield from self._last_round(batches, first)

    def _is_full(self, batch: Anything) -> bool:
        return self.batch_size is None or len(batch) == self.batch_size

    def _own_of(self, batches: list[Any]) -> Anything:
        if not self.split_batches:
            return batches[self.process_index]
        size = cast("int", self.batch_size) // self.num_processes
        return batches[0][size * self.process_index : size * (self.process_index + 1)]

    def _last_round(self, batches: list[Any], first: list[Any]) -> Iterator[tuple[Any, int | None]]:
        if self.batch_size is None:
            yield from self._last_round_of_whole_batches(batches, first)
            return
        indices = [index for batch in batches for index in batch]
        size = self.batch_size // (self.num_processes if self.split_batches else 1)
        size = max(size, -(-len(indices) // self.num_processes))  # of a sampler with larger batches
        start = size * self.process_index
        own = indices[start : start + size]
        if not self.even_batches:
            yield from [(own, None)] if own else []
            return
        pool = cycle(index for batch in first for index in batch)
        filled = [*indices, *islice(pool, max(0, size * self.num_processes - len(indices)))]
        yield filled[start : start + size], len(own) if len(own) < size else None

    def _last_round_of_whole_batches(
        self, batches: list[Any], first: list[Any]
    ) -> Iterator[tuple[Any, int | None]]:
        """Batches of their own sizes are not filled up: ranks without one repeat an early one."""
        missing = self.process_index - len(batches)
        if missing < 0:
            yield batches[self.process_index], None
        elif self.even_batches:
            yield first[missing % len(first)], 0

    def _misses_the_tail(self) -> bool:
        """Whether the last, short batch of a split sampler holds nothing for this rank."""
        sampler = getattr(self.batch_sampler, "sampler", None)
        if self.even_batches or self.drop_last or not isinstance(sampler, Sized):
            return False
        size = cast("int", self.batch_size)
        tail = len(sampler) % size
        return 0 < tail <= size // self.num_processes * self.process_index


class SkipBatchSampler(Sampler[Any]):
    """A batch sampler without its first batches.

    Args:
        batch_sampler: whatever gives the indices of one batch at a time.
        skip_batches: how many to leave out.
        keep_first: how many of these to give nevertheless, at the very beginning.
    """

    def __init__(
        self, batch_sampler: Iterable[Any], skip_batches: int = 0, *, keep_first: int = 0
    ) -> None:
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches
        self.keep_first = min(keep_first, skip_batches)

    def __getattr__(self, name: str) -> Anything:
        if name == "batch_sampler":  # not yet there: while it is being copied
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)  # batch_size, drop_last, sampler

    @property
    def total_length(self) -> int:
        """Batches of the whole batch sampler."""
        return len(cast("Sized", self.batch_sampler))

    def __len__(self) -> int:
        return max(0, self.total_length - self.skip_batches) + min(
            self.keep_first, self.total_length
        )

    def __iter__(self) -> Iterator[Any]:
        source = iter(self.batch_sampler)
        skipped = self.skip_batches - self.keep_first
        return chain(islice(source, self.keep_first), islice(source, skipped, None))


class WithoutFirst(Sampler[Any]):
    """A batch sampler without its first samples, wherever a batch of it would be cut by that.

    A plain batch sampler makes batches of the rest anew; of any other, one batch may be shorter.
    """

    def __init__(self, batch_sampler: Anything, samples: int) -> None:
        self.batch_sampler = batch_sampler
        self.samples = samples

    def __getattr__(self, name: str) -> Anything:
        if name == "batch_sampler":
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)

    def __iter__(self) -> Iterator[Any]:
        if type(self.batch_sampler) is BatchSampler:
            rest = copy.copy(self.batch_sampler)
            rest.sampler = cast(
                "Any", Begun(islice(self.batch_sampler.sampler, self.samples, None))
            )
            yield from rest
            return
        missing = self.samples
        for batch in self.batch_sampler:
            if missing < len(batch):
                yield batch[missing:]
            missing = max(0, missing - len(batch))


class Begun:
    """Indices that are being given out already, where a loader expects a sampler."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self.indices


class SharedShuffle(Sampler[Any]):
    """A sampler without a generator of its own, whose every pass all ranks draw alike.

    It draws its seed where RandomSampler does, from the global generator at the first index, so
    the order is the one that plain PyTorch has in one process; the ranks take rank 0's seed.

    Args:
        sampler: copied; a sampler with an attribute `generator`.
        agree: turns this rank's number into the one that all ranks use. A collective.
    """

    def __init__(self, sampler: Sampler[Any], agree: Callable[[int], int]) -> None:
        self.sampler: Anything = copy.copy(sampler)
        self._agree = agree

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler which epoch begins, when it wants to know."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Anything:
        if name == "sampler":  # not yet there: while it is being copied
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._drawn())

    def _drawn(self) -> Iterator[Iterable[Any]]:
        """All indices at once, so that none of them passes through Python on its way."""
        seed = self._agree(int(torch.empty((), dtype=torch.int64).random_().item()))
        self.sampler.generator = generator = torch.Generator().manual_seed(seed)
        if _is_plain_shuffle(self.sampler):  # what it would do, an index for an index
            yield torch.randperm(len(self.sampler), generator=generator).tolist()
        else:
            yield self.sampler


def _is_plain_shuffle(sampler: Anything) -> bool:
    plain = type(sampler) is RandomSampler and not sampler.replacement
    return plain and sampler.num_samples == len(sampler.data_source)


class SeedableRandomSampler(RandomSampler):
    """A RandomSampler whose order follows from a seed and the epoch alone."""

    def __init__(self, *args: Anything, data_seed: int | None = None, **kwargs: Anything) -> None:
        super().__init__(*args, **kwargs)
        self.initial_seed = data_seed if data_seed is not None else torch.initial_seed()
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        seed = (self.initial_seed + self.epoch) % 2**63
        self.generator = torch.Generator().manual_seed(seed)
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)


def require_divisible(batch_size: int | None, num_processes: int) -> None:
    """Raise `SpecError` unless a batch can be cut into as many equal slices as there are ranks."""
    if batch_size is None:
        raise SpecError(
            "split_batches=True needs a loader with a batch_size; this one makes its own batches."
        )
    if batch_size % num_processes:
        raise SpecError(
            f"split_batches=True cuts each batch into {num_processes} equal slices, one for each "
            f"process, but batch_size is {batch_size}. Choose a round multiple of {num_processes}."
        )
