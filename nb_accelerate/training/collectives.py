"""Collectives over nested data, checked before they start.

gloo and NCCL abort, or hang, when shapes differ between ranks. So every call first exchanges one
page of each rank: what is called, and each tensor's type and shape. Tensors on the CPU that fit on
the page travel with it, so that small data costs one exchange, however many tensors it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from nb_accelerate.errors import SpecError

from .nested import Anything, Nested, flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .engine import Engine

__all__ = ["Collectives", "Reduction"]

Reduction: TypeAlias = Literal["sum", "mean", "max", "none"]

_PAGE_BYTES = 4096
_HEADER_INTS = 64
_HEADER_BYTES = _HEADER_INTS * 8
_ALIGNMENT = 16  # the widest element, complex128

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
    """What all ranks bring, by rank; and their tensors, when they came along."""

    descriptions: list[Description]
    tensors: list[list[torch.Tensor]] | None

    def shapes(self, number: int) -> list[tuple[int, ...]]:
        """The shape of one tensor on each rank."""
        return [description.tensors[number][1] for description in self.descriptions]


class Collectives:
    """What the ranks of one engine do together. Solo, data comes back as it was given."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rank, self.world_size = engine.rank, engine.world_size

    def gather(self, data: Nested) -> Nested:
        """Concatenate each tensor over the ranks: (n, *rest) -> (world_size * n, *rest).

        Raises:
            SpecError: the ranks bring different shapes.
            TypeError: `data` holds something that is no tensor.
        """
        tensors, rebuild = _tensors_of("gather", data)
        if self.world_size == 1:
            return data
        rows = [tensor.detach().reshape(tensor.shape or (1,)) for tensor in tensors]
        exchange = self._exchange("gather", rows)
        _require_equal(exchange, _GATHER_CURE)
        return rebuild(
            [torch.cat(list(r)) for r in zip(*self._everyone(rows, exchange), strict=True)]
        )

    def gather_rows(self, data: Nested) -> Nested:
        """As `gather`, but the ranks may bring different numbers of rows. For metrics."""
        tensors, rebuild = _tensors_of("gather_for_metrics", data)
        rows = [tensor.detach().reshape(tensor.shape or (1,)) for tensor in tensors]
        exchange = self._exchange("gather_for_metrics", rows)
        _require_equal(exchange, "Only the first axis may differ.", but_first_axis=True)
        if exchange.tensors is None:
            rows = [_grown(row, exchange.shapes(n), 0) for n, row in enumerate(rows)]
        everyone = self._everyone(rows, exchange)
        parts = [[t[: exchange.shapes(n)[r][0]] for n, t in enumerate(ts)]
                 for r, ts in enumerate(everyone)]  # fmt: skip
        return rebuild([torch.cat(list(pieces)) for pieces in zip(*parts, strict=True)])

    def gather_object(self, value: Anything) -> list[Any]:
        """The ranks' lists (or tuples) in one list; other values become its items."""
        everyone = [value] if self.world_size == 1 else self._engine.all_gather_object(value)
        return [item for v in everyone for item in (v if isinstance(v, list | tuple) else [v])]

    def reduce(self, data: Nested, reduction: Reduction = "sum", scale: float = 1.0) -> Nested:
        """Combine each tensor over the ranks, element by element, into new tensors.

        The mean of integers is floating point; the sum of booleans is a count.

        Raises:
            SpecError: no such reduction, or the ranks bring different shapes.
            TypeError: `data` holds something that is no tensor.
        """
        if reduction not in ("sum", "mean", "max", "none"):
            raise SpecError(f"reduction={reduction!r} is none of 'sum', 'mean', 'max', 'none'.")
        tensors, rebuild = _tensors_of("reduce", data)
        if reduction == "none":
            return rebuild([tensor.clone() for tensor in tensors])
        totals = self._combined([t.detach() for t in tensors], reduction)
        return rebuild([total * scale if scale != 1 else total for total in totals])

    def broadcast(self, data: Nested, from_process: int = 0) -> Nested:
        """Fill the tensors in place with those of one rank, and return them."""
        tensors, _ = _tensors_of("broadcast", data)
        if self.world_size > 1:
            exchange = self._exchange("broadcast", tensors)
            _require_equal(exchange, "All ranks must hold a tensor to receive into.")
            for number, tensor in enumerate(tensors):
                if exchange.tensors is None:
                    self._engine.broadcast(tensor, from_process)
                else:
                    tensor.detach().copy_(exchange.tensors[from_process][number])
        return data

    def broadcast_objects(self, values: list[Any], from_process: int = 0) -> list[Any]:
        """Fill the list in place with that of one rank, and return it."""
        if self.world_size > 1:
            mine = values if self.rank == from_process else None
            values[:] = self._engine.all_gather_object(mine)[from_process]
        return values

    def agreed(self, number: int) -> int:
        """Rank 0's number, on every rank."""
        if self.world_size == 1:
            return number
        return int(self.broadcast(torch.tensor([number], dtype=torch.int64)).item())

    def pad(
        self, data: Nested, dim: int = 0, *, pad_index: float = 0, pad_first: bool = False
    ) -> Nested:
        """Bring each tensor to the largest size that any rank has along `dim`.

        Tensors without such an axis stay as they are.
        """
        tensors, rebuild = _tensors_of("pad_across_processes", data)
        if self.world_size == 1:
            return data
        exchange = self._exchange("pad_across_processes", [t.detach() for t in tensors], bare=True)
        return rebuild([
            _grown(t, exchange.shapes(n), dim, fill=pad_index, at_front=pad_first)
            for n, t in enumerate(tensors)
        ])  # fmt: skip

    def barrier(self) -> None:
        """Return once every rank has come here."""
        self._engine.barrier()

    # ------------------------------------------------------------ how they travel
    def _combined(self, tensors: list[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        counted = [t.long() if t.dtype is torch.bool and reduction != "max" else t for t in tensors]
        if self.world_size == 1:
            totals = [tensor.clone() for tensor in counted]
        else:
            exchange = self._exchange("reduce", counted)
            _require_equal(exchange, "Bring the same shape on all ranks.")
            totals = self._totals(counted, exchange, "max" if reduction == "max" else "sum")
        if reduction == "mean":
            return [_divided(total, self.world_size) for total in totals]
        return totals

    def _totals(
        self, tensors: list[torch.Tensor], exchange: Exchange, op: Literal["sum", "max"]
    ) -> list[torch.Tensor]:
        if exchange.tensors is None:
            reduced = (self._engine.all_reduce(tensor, op) for tensor in tensors)
        else:
            stacks = (torch.stack(list(ts)) for ts in zip(*exchange.tensors, strict=True))
            reduced = (s.sum(0) if op == "sum" else s.amax(0) for s in stacks)
        return [total.to(t.dtype) for total, t in zip(reduced, tensors, strict=True)]

    def _everyone(
        self, tensors: list[torch.Tensor], exchange: Exchange
    ) -> Sequence[Sequence[torch.Tensor]]:
        """The tensors of every rank, by rank."""
        if exchange.tensors is not None:
            return exchange.tensors
        return list(zip(*(self._engine.all_gather(tensor) for tensor in tensors), strict=True))

    def _exchange(
        self, call: str, tensors: Sequence[torch.Tensor], *, bare: bool = False
    ) -> Exchange:
        """Tell all ranks what this one brings, and learn what they bring.

        `bare` keeps the tensors themselves at home.
        """
        description = Description(call, tuple((t.dtype, tuple(t.shape)) for t in tensors))
        inline = not bare and _fits(tensors)
        page = _page(description, tensors if inline else ())
        pages = torch.stack(self._engine.all_gather(page.to(self._engine.header_device))).cpu()
        headers = pages[:, :_HEADER_BYTES].contiguous().view(torch.int64).tolist()
        if any(header[0] == _TOO_LONG for header in headers):
            return Exchange(self._engine.all_gather_object(description), None)
        descriptions = [_decoded(header) for header in headers]
        all_inline = all(header[1] for header in headers)
        if not all_inline or any(d.call != call for d in descriptions):
            return Exchange(descriptions, None)
        return Exchange(
            descriptions, [_unpacked(p, d) for p, d in zip(pages, descriptions, strict=True)]
        )


# ---------------------------------------------------------------- pages
_TOO_LONG = -1
_GATHER_CURE = (
    "Use gather_for_metrics for a short last batch, or pad_across_processes before gather."
)


def _page(description: Description, inline: Sequence[torch.Tensor]) -> torch.Tensor:
    ints = [_CALLS.index(description.call), int(bool(inline)), len(description.tensors)]
    for dtype, shape in description.tensors:
        ints += [_DTYPE_NUMBERS[dtype], len(shape), *shape]
    if len(ints) > _HEADER_INTS:
        ints = [_TOO_LONG]
    page = torch.zeros(_PAGE_BYTES, dtype=torch.uint8)
    page[:_HEADER_BYTES].view(torch.int64)[: len(ints)] = torch.tensor(ints)
    start = _HEADER_BYTES
    for tensor in inline:
        raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
        page[start : start + len(raw)] = raw
        start += _aligned(len(raw))
    return page


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


def _fits(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the tensors can travel on the page: all on the CPU, and small."""
    if not all(t.device.type == "cpu" for t in tensors):
        return False
    size = sum(_aligned(t.numel() * t.dtype.itemsize) for t in tensors)
    return len(tensors) > 0 and size <= _PAGE_BYTES - _HEADER_BYTES


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


# ---------------------------------------------------------------- checks and small parts
def _require_equal(exchange: Exchange, cure: str, *, but_first_axis: bool = False) -> None:
    """Raise, on every rank alike, unless all ranks bring the same to the same call."""
    descriptions = exchange.descriptions
    compare: Callable[[Description], object] = _without_rows if but_first_axis else _as_it_is
    if all(compare(d) == compare(descriptions[0]) for d in descriptions):
        return
    if len({d.call for d in descriptions}) > 1:
        where = ", ".join(f"rank {r} is in {d.call}" for r, d in enumerate(descriptions))
        raise SpecError(f"The ranks have met in different collectives: {where}.")
    brought = "; ".join(f"rank {r} brings {d}" for r, d in enumerate(descriptions))
    raise SpecError(
        f"{descriptions[0].call} needs the same shapes on all ranks, but {brought}. {cure}"
    )


def _as_it_is(description: Description) -> object:
    return description


def _without_rows(description: Description) -> object:
    return description.call, [(dtype, shape[1:]) for dtype, shape in description.tensors]


def _tensors_of(
    call: str, data: Nested
) -> tuple[list[torch.Tensor], Callable[[list[Nested]], Nested]]:
    leaves, rebuild = flatten(data)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(
                f"{call} takes tensors, also in lists, tuples and dicts, but found a "
                f"{type(leaf).__name__}. Use gather_object for other things."
            )
    return leaves, rebuild


def _divided(total: torch.Tensor, count: int) -> torch.Tensor:
    divided = total / count
    return divided.to(total.dtype) if total.is_floating_point() else divided


def _grown(
    tensor: torch.Tensor,
    shapes: list[tuple[int, ...]],
    dim: int,
    *,
    fill: float = 0,
    at_front: bool = False,
) -> torch.Tensor:
    """`tensor` at the largest of the sizes that `shapes` have along `dim`."""
    if not -tensor.ndim <= dim < tensor.ndim:
        return tensor
    size, longest = tensor.shape[dim], max(shape[dim] for shape in shapes)
    if size == longest:
        return tensor
    grown = tensor.new_full((*tensor.shape[: dim % tensor.ndim], longest,
                             *tensor.shape[dim % tensor.ndim + 1 :]), fill)  # fmt: skip
    grown.narrow(dim, longest - size if at_front else 0, size).copy_(tensor)
    return grown
