"""Streams: which samples of a dataset without indices fall to which rank."""

from __future__ import annotations

from collections import deque
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import IterableDataset

from .batches import Counted
from .samplers import require_divisible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sized

    from .nested import Anything

__all__ = [
    "CountingCollate",
    "IterableDatasetShard",
    "Repeated",
    "SkippedStream",
    "is_shared_stream",
    "own_part_of",
]


class Repeated:
    """A sample that only fills up a last batch: it has been given out before."""

    __slots__ = ("sample",)

    def __init__(self, sample: object) -> None:
        self.sample = sample


class IterableDatasetShard(IterableDataset[Any]):
    """One rank's share of a stream: every rank walks it all and keeps its slice of each block.

    A block is one batch for each rank (`split_batches`: one batch for all). The last block is
    filled up from the first one, or dropped with `drop_last`.

    Args:
        mark_repeated: give samples that fill up the last block as `Repeated`.

    Attributes:
        offset: samples of the stream that are left out before it is shared out.
        skipped_blocks: blocks that are read, but not given.
    """

    def __init__(  # noqa: PLR0913  # upstream's signature
        self,
        dataset: Iterable[Any],
        batch_size: int = 1,
        drop_last: bool = False,  # noqa: FBT001, FBT002  # upstream's order
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,  # noqa: FBT001, FBT002
        *,
        even_batches: bool = True,
        mark_repeated: bool = False,
    ) -> None:
        if split_batches:
            require_divisible(batch_size, num_processes)
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.mark_repeated = mark_repeated
        self.offset = self.skipped_blocks = 0

    @property
    def per_rank(self) -> int:
        """Samples of each block that fall to one rank."""
        return self.batch_size // self.num_processes if self.split_batches else self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset which epoch begins, when it wants to know."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        block = self.per_rank * self.num_processes
        whole, rest = divmod(len(cast("Sized", self.dataset)), block)
        if self.drop_last or not rest:
            return whole * self.per_rank
        if self.even_batches:
            return (whole + 1) * self.per_rank
        own = rest - self.per_rank * self.process_index
        return whole * self.per_rank + min(max(own, 0), self.per_rank)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._own_slices())

    def _own_slices(self) -> Iterator[list[Any]]:
        size = self.per_rank * self.num_processes
        own = slice(self.per_rank * self.process_index, self.per_rank * (self.process_index + 1))
        source = islice(iter(self.dataset), self.offset, None)
        first: list[Any] = []
        if self.skipped_blocks:
            first = list(islice(source, size))
            deque(islice(source, (self.skipped_blocks - 1) * size), maxlen=0)
        while block := list(islice(source, size)):
            first = first or block
            if len(block) == size or not (self.even_batches or self.drop_last):
                yield block[own]
            elif not self.drop_last:
                yield self._filled(block, first)[own]

    def _filled(self, block: list[Any], first: list[Any]) -> list[Any]:
        missing = self.per_rank * self.num_processes - len(block)
        more = islice(cycle(first), missing)
        return block + [Repeated(sample) if self.mark_repeated else sample for sample in more]


class CountingCollate:
    """A stream's collate_fn that counts the samples that only fill up."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Anything) -> Counted:
        """What the user's own makes of the samples, counted."""
        if not isinstance(samples, list):  # a loader without batch_size: one item at a time
            repeated = isinstance(samples, Repeated)
            item = samples.sample if isinstance(samples, Repeated) else samples
            return Counted(self.collate(item), None, 0 if repeated else None)
        if type(samples[-1]) is not Repeated:  # what fills up comes last
            return Counted(self.collate(samples), len(samples))
        bare = [s.sample if type(s) is Repeated else s for s in samples]
        real = sum(type(s) is not Repeated for s in samples)
        return Counted(self.collate(bare), len(bare), real)


class SkippedStream(IterableDataset[Any]):
    """A stream without its first samples.

    Args:
        dataset: the stream.
        samples: how many to leave out.
        keep_first: how many of these to give nevertheless, at the very beginning.
    """

    def __init__(self, dataset: Iterable[Any], samples: int, *, keep_first: int = 0) -> None:
        self.dataset = dataset
        self.samples = samples
        self.keep_first = min(keep_first, samples)

    def __getattr__(self, name: str) -> Anything:
        if name == "dataset":  # not yet there: while it is being copied
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        whole = len(cast("Sized", self.dataset))
        return max(0, whole - self.samples) + min(self.keep_first, whole)

    def __iter__(self) -> Iterator[Any]:
        source = iter(self.dataset)
        skipped = self.samples - self.keep_first
        return chain(islice(source, self.keep_first), islice(source, skipped, None))


def is_shared_stream(dataset: object) -> bool:
    """Whether the user has shared it out already, as `datasets.split_dataset_by_node` does."""
    return getattr(dataset, "_distributed", None) is not None


def own_part_of(dataset: object, num_processes: int, process_index: int) -> object | None:
    """This rank's part of a stream that can be cut: one with `shard` and enough shards.

    The ranks read parts of their own then, none of them all: as many samples as theirs have.
    """
    shards = getattr(dataset, "n_shards", None)
    if not isinstance(shards, int) or shards < num_processes or not hasattr(dataset, "shard"):
        return None
    part: object = dataset.shard(num_processes, process_index)
    return part
