"""Dispatching: rank 0 reads for all, and deals out a batch to each rank.

The ranks get one batch each at a time. The last, incomplete round is cut anew into equal batches,
filled up from the very first samples, as Accelerate does. Batches that cannot be cut, since they
hold other things than rows of tensors and lists of samples, are dealt out whole; so are batches of
different sizes within the stream. A rank that would have none then repeats an early one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, RandomSampler

from .batches import Counted, batch_size_of
from .cutting import cut
from .post import Post
from .reading import Start, draw_base_seed, read
from .sharing import index_sampler_of, reads_a_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from .sharing import Sharding

__all__ = ["DispatchReader"]


@dataclass(frozen=True, slots=True)
class _Round:
    """What rank 0 has read for one batch of each rank.

    Attributes:
        batches: one for each rank, or fewer; with split_batches, one for all.
        state: of a stateful loader, once it has read them.
    """

    batches: list[Any]
    state: dict[str, Any] | None


class DispatchReader:
    """Reads all on rank 0 and gives each rank its part."""

    def __init__(self, twin: DataLoader[Any], sharding: Sharding) -> None:
        self.twin = twin
        self._sharding = sharding
        self._post = Post(sharding.collectives.engine)
        self._splits = sharding.config.split_batches
        self._num = sharding.ranks[0]
        self._per_round = 1 if self._splits else self._num

    def __len__(self) -> int:
        whole, rest = divmod(len(self.twin), self._per_round)
        return whole if self._drops_last or not rest else whole + 1

    @property
    def _drops_last(self) -> bool:
        return bool(getattr(index_sampler_of(self.twin), "drop_last", self.twin.drop_last))

    def begin(self, start: Start) -> Iterator[Counted]:
        """This rank's batches from there on. A collective at each."""
        if self._sharding.ranks[1] == 0:
            return self._dealt(start)
        if start.random is None:
            _draw_as_reader(self.twin)
        return self._received()

    def _dealt(self, start: Start) -> Iterator[Counted]:
        with self._post.opened() as post:
            rounds = self._rounds(start)
            first = current = next(rounds, None)
            if start.skipped:
                current = next(rounds, None)
            while current is not None:
                upcoming = next(rounds, None)
                parts = self._parts(current, first, is_last=upcoming is None)
                post.deal(parts, is_last=upcoming is None)
                yield parts[0]._replace(state=current.state)
                current = upcoming
                if current is None:
                    return
            post.deal(None, is_last=True)

    def _received(self) -> Iterator[Counted]:
        is_last = False
        while not is_last:
            part, is_last = self._post.receive()
            if part is not None:
                yield part

    # ------------------------------------------------------------ rank 0
    def _rounds(self, start: Start) -> Iterator[_Round]:
        """The rounds; when some are skipped, the very first one before the others."""
        per_round = self._per_round
        own = replace(start, skipped=start.skipped * per_round, told=start.told)
        source = read(self.twin, own, keep_first=per_round if start.skipped else 0)
        while some := list(islice(source, per_round)):
            if len(some) == per_round or not self._drops_last:
                yield _Round([one.batch for one in some], some[-1].state)

    def _parts(self, current: _Round, first: _Round | None, *, is_last: bool) -> list[Counted]:
        """One batch for each rank."""
        batches, num = current.batches, self._num
        sizes = [batch_size_of(batch) for batch in batches]
        if not self._splits and len(batches) == num and (not is_last or len(set(sizes)) == 1):
            return [Counted(batch, size) for batch, size in zip(batches, sizes, strict=True)]
        early = first.batches if first is not None else batches
        if self._splits or self._are_batches:
            parts = cut(batches, early, num, self._sharding.slice_fn)
            if parts is not None:
                return parts
        missing = num - len(batches)
        repeated = [Counted(early[n % len(early)], None, 0) for n in range(missing)]
        return [*(Counted(*pair) for pair in zip(batches, sizes, strict=True)),
                *(one._replace(size=batch_size_of(one.batch)) for one in repeated)]  # fmt: skip

    @property
    def _are_batches(self) -> bool:
        """Whether what the loader gives are batches, not single items."""
        if self.twin.batch_sampler is not None or self.twin.batch_size is not None:
            return True
        sampler = self.twin.sampler
        return isinstance(sampler, BatchSampler) or hasattr(sampler, "batch_size")


def _draw_as_reader(loader: DataLoader[Any]) -> None:
    """Draw what rank 0 draws for its loader, so that the ranks' generators stay alike."""
    draw_base_seed(loader)
    batches = index_sampler_of(loader)
    sampler = getattr(batches, "sampler", batches)
    draws = isinstance(sampler, RandomSampler) and sampler.generator is None
    if draws and not reads_a_stream(loader):
        torch.empty((), dtype=torch.int64).random_()
