"""Cutting: the batches of a last round, joined and cut into equal ones, one for each rank."""

from __future__ import annotations

from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import torch

from .batches import Counted, batch_size_of, is_sample_list
from .nested import Nested, flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["cut"]


def cut(
    batches: Sequence[Nested],
    early: Sequence[Nested],
    num: int,
    slice_fn: Callable[..., Any] | None = None,
) -> list[Counted] | None:
    """The batches' samples as `num` batches of one size; None where they cannot be joined.

    Args:
        batches: one or more.
        early: those whose first samples fill the last one up, over and over if need be.
        num: how many to make.
        slice_fn: cuts the joined batch in Accelerate's way: (data, slice, process_index=,
            num_processes=). None cuts tensors and lists of samples.
    """
    columns = Columns.of(batches)
    if columns is None:
        return None
    size = -(-columns.size // num)
    if size * num > columns.size:
        filling = Columns.of(early)
        if filling is None or not columns.is_like(filling):
            return None
        columns.fill(size * num, filling)
    parts = []
    for rank in range(num):
        own = slice(rank * size, (rank + 1) * size)
        real = min(max(columns.real - rank * size, 0), size)
        whole = columns.whole()
        batch = columns.part(own) if slice_fn is None else slice_fn(
            whole, own, process_index=rank, num_processes=num
        )  # fmt: skip
        parts.append(Counted(batch, size, real if real < size else None))
    return parts


class Columns:
    """Batches side by side: each place of their structure as one column of all samples.

    Attributes:
        size: samples.
        real: those that do not only fill up.
    """

    def __init__(
        self,
        columns: list[Any],
        is_row: list[bool],
        rebuild: Callable[[list[Nested]], Nested],
        size: int,
    ) -> None:
        self._columns = columns
        self._is_row = is_row
        self._rebuild = rebuild
        self.size = self.real = size

    @classmethod
    def of(cls, batches: Sequence[Nested]) -> Columns | None:
        """None where a place has neither a value for each sample nor the same in all batches."""
        sizes = [batch_size_of(batch) for batch in batches]
        if any(size is None for size in sizes):
            return None
        flat = [
            flatten(batch, is_leaf=partial(is_sample_list, size=size))
            for batch, size in zip(batches, sizes, strict=True)
        ]
        if len({len(leaves) for leaves, _ in flat}) != 1:
            return None
        columns, is_row = [], []
        for place in zip(*(leaves for leaves, _ in flat), strict=True):
            joined = _joined(place, sizes)
            if joined is None and not _are_equal(place):
                return None
            columns.append(place[0] if joined is None else joined)
            is_row.append(joined is not None)
        return cls(columns, is_row, flat[0][1], sum(size or 0 for size in sizes))

    def is_like(self, other: Columns) -> bool:
        """Whether rows of `other` can be put at the end of this one's."""
        return self._is_row == other._is_row and all(
            _are_alike(a, b)
            for a, b, is_row in zip(self._columns, other._columns, self._is_row, strict=True)
            if is_row
        )

    def fill(self, size: int, other: Columns) -> None:
        """Grow to `size` with `other`'s first rows."""
        numbers = list(islice(cycle(range(other.size)), size - self.size))
        for place, is_row in enumerate(self._is_row):
            if is_row:
                own, more = self._columns[place], other._columns[place]
                picked = (
                    more[torch.tensor(numbers, device=more.device)]
                    if isinstance(more, torch.Tensor)
                    else type(more)(more[n] for n in numbers)
                )
                self._columns[place] = _together([own, picked])
        self.size = size

    def whole(self) -> Nested:
        """All samples as one batch."""
        return self._rebuild(self._columns)

    def part(self, rows: slice) -> Nested:
        """Some samples as a batch."""
        return self._rebuild([
            column[rows] if is_row else column
            for column, is_row in zip(self._columns, self._is_row, strict=True)
        ])  # fmt: skip


def _joined(place: Sequence[Any], sizes: Sequence[int | None]) -> Any:  # noqa: ANN401
    """One column of all samples; None where the batches have no value for each sample."""
    has_rows = all(
        (isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == size)
        or (isinstance(leaf, list | tuple) and len(leaf) == size)
        for leaf, size in zip(place, sizes, strict=True)
    )
    if not has_rows or not all(_are_alike(place[0], leaf) for leaf in place):
        return None
    return _together(place)


def _are_alike(a: Any, b: Any) -> bool:  # noqa: ANN401
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return (a.dtype, a.shape[1:], a.device) == (b.dtype, b.shape[1:], b.device)
    return type(a) is type(b)


def _together(columns: Sequence[Any]) -> Any:  # noqa: ANN401
    if isinstance(columns[0], torch.Tensor):
        return torch.cat(list(columns))
    return type(columns[0])(item for column in columns for item in column)


def _are_equal(place: Sequence[Any]) -> bool:
    first = place[0]
    if isinstance(first, torch.Tensor):
        return all(isinstance(o, torch.Tensor) and torch.equal(o, first) for o in place)
    return all(type(other) is type(first) and bool(other == first) for other in place)
