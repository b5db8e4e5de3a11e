"""Pages: what each rank brings to a collective, and small tensors of the CPU themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Description", "Exchange", "fits", "opened", "page_of"]

_PAGE_BYTES = 4096
_HEADER_INTS = 64
_HEADER_BYTES = _HEADER_INTS * 8
_ALIGNMENT = 16  # the widest element, complex128
_TOO_LONG = -1

_CALLS = ("gather", "gather_for_metrics", "reduce", "broadcast", "pad_across_processes")
_DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}


@dataclass(frozen=True, slots=True)
class Description:
    """What a rank brings to a collective."""

    call: str
    tensors: tuple[tuple[torch.dtype, tuple[int, ...]], ...]

    def __str__(self) -> str:
        shapes = (f"{str(d).removeprefix('torch.')} {list(shape)}" for d, shape in self.tensors)
        return ", ".join(shapes) or "no tensors"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What all ranks bring, by rank; and the pages that their tensors came along on, if they did.

    Attributes:
        are_equal: whether all bring the same; None where nobody has looked.
    """

    descriptions: list[Description]
    pages: Sequence[torch.Tensor] | None = None
    are_equal: bool | None = None

    def shapes(self, number: int) -> list[tuple[int, ...]]:
        """The shape of one tensor on each rank."""
        return [description.tensors[number][1] for description in self.descriptions]

    @property
    def tensors(self) -> list[list[torch.Tensor]] | None:
        """Those that came along, by rank."""
        if self.pages is None:
            return None
        return [_unpacked(p, d) for p, d in zip(self.pages, self.descriptions, strict=True)]

    def joined(self) -> list[torch.Tensor]:
        """Those that came along, each concatenated over the ranks."""
        if not self.are_equal:
            return [torch.cat(list(pieces)) for pieces in zip(*self.tensors or (), strict=True)]
        found, start = [], _HEADER_BYTES
        for dtype, (rows, *rest) in self.descriptions[0].tensors:
            size = torch.Size((rows, *rest)).numel() * dtype.itemsize
            raw = torch.cat([page[start : start + size] for page in self.pages or ()])
            found.append(raw.view(dtype).view(rows * len(self.descriptions), *rest))
            start += _aligned(size)
        return found


def page_of(description: Description, inline: Sequence[torch.Tensor]) -> torch.Tensor:
    """A page to send; `inline` tensors, which must fit, go along."""
    page = np.empty(_PAGE_BYTES, np.uint8)
    page[:_HEADER_BYTES] = _header(description, bool(inline))
    start = _HEADER_BYTES
    for tensor in inline:
        raw = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        page[start : start + len(raw)] = raw
        start += _aligned(len(raw))
    return torch.from_numpy(page)


def opened(pages: Sequence[torch.Tensor], own: Description) -> Exchange | None:
    """What the ranks' pages say; None where a description was too long for its page."""
    raw = [page[:_HEADER_BYTES].numpy() for page in pages]
    if all(np.array_equal(one, raw[0]) for one in raw[1:]):
        call, inline, *_ = raw[0].view(np.int64).tolist()
        if call == _TOO_LONG:
            return None
        return Exchange([own] * len(pages), pages if inline else None, are_equal=True)
    headers = [one.view(np.int64).tolist() for one in raw]
    if any(header[0] == _TOO_LONG for header in headers):
        return None
    descriptions = [_decoded(header) for header in headers]
    inline = all(header[1] for header in headers) and len({d.call for d in descriptions}) == 1
    return Exchange(descriptions, pages if inline else None, are_equal=False)


def fits(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the tensors can travel on the page: all on the CPU, and small."""
    size = 0
    for tensor in tensors:
        if not tensor.is_cpu:
            return False
        size += _aligned(tensor.nbytes)
    return len(tensors) > 0 and size <= _PAGE_BYTES - _HEADER_BYTES


@lru_cache(maxsize=64)
def _header(description: Description, inline: bool) -> np.ndarray:  # noqa: FBT001
    """As bytes."""
    ints = [_CALLS.index(description.call), int(inline), len(description.tensors)]
    for dtype, shape in description.tensors:
        ints += [_DTYPE_NUMBERS[dtype], len(shape), *shape]
    if len(ints) > _HEADER_INTS:
        ints = [_TOO_LONG]
    header = np.zeros(_HEADER_INTS, np.int64)
    header[: len(ints)] = ints
    return header.view(np.uint8)


def _decoded(header: list[int]) -> Description:
    call, _, count, *rest = header
    ints = iter(rest)
    tensors = []
    for _ in range(count):
        dtype, ndim = _DTYPES[next(ints)], next(ints)
        tensors.append((dtype, tuple(next(ints) for _ in range(ndim))))
    return Description(_CALLS[call], tuple(tensors))


def _unpacked(page: torch.Tensor, description: Description) -> list[torch.Tensor]:
    tensors, start = [], _HEADER_BYTES
    for dtype, shape in description.tensors:
        size = torch.Size(shape).numel() * dtype.itemsize
        tensors.append(page[start : start + size].view(dtype).view(shape))
        start += _aligned(size)
    return tensors


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
