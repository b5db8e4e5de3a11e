"""Collectives over nested data, checked before they start.

gloo and NCCL abort, or hang, when shapes differ between ranks. So every call first exchanges one
page of each rank: what is called, and each tensor's type and shape. Tensors on the CPU that fit on
the page travel with it, so that small data costs one exchange, however many tensors it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from nb_accelerate.errors import DistributedOperationException, SpecError

from .nested import Anything, Nested, flatten
from .pages import Description, Exchange, fits, opened, page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .engine import Engine

__all__ = ["Collectives", "Reduction"]

Reduction: TypeAlias = Literal["sum", "mean", "max", "none"]


class Collectives:
    """What the ranks of one engine do together. Solo, data comes back as it was given."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rank, self.world_size = engine.rank, engine.world_size

    @property
    def engine(self) -> Engine:
        """Whose ranks these are."""
        return self._engine

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
        if exchange.pages is not None:
            return rebuild(exchange.joined())
        return rebuild([torch.cat(self._engine.all_gather(row)) for row in rows])

    def gather_rows(self, data: Nested) -> Nested:
        """As `gather`, but the ranks may bring different numbers of rows. For metrics."""
        tensors, rebuild = _tensors_of("gather_for_metrics", data)
        rows = [tensor.detach().reshape(tensor.shape or (1,)) for tensor in tensors]
        exchange = self._exchange("gather_for_metrics", rows)
        _require_equal(exchange, "Only the first axis may differ.", compare=_without_rows)
        if exchange.pages is not None:
            return rebuild(exchange.joined())
        rows = [_grown(row, exchange.shapes(n), 0) for n, row in enumerate(rows)]
        everyone = zip(*(self._engine.all_gather(row) for row in rows), strict=True)
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
            sent = exchange.tensors
            for number, tensor in enumerate(tensors):
                if sent is None:
                    self._engine.broadcast(tensor, from_process)
                else:
                    tensor.detach().copy_(sent[from_process][number])
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

    def total(self, number: float) -> tuple[float, int]:
        """The sum of the ranks' numbers, and how many ranks there are."""
        if self.world_size == 1:
            return number, 1
        mine = torch.tensor([number], dtype=torch.float64)
        return float(self.reduce(mine, "sum").item()), self.world_size

    def any(self, yes: bool) -> bool:  # noqa: FBT001
        """Whether any rank says yes, on every rank."""
        return self.total(float(yes))[0] > 0

    def pad(
        self, data: Nested, dim: int = 0, *, pad_index: float = 0, pad_first: bool = False
    ) -> Nested:
        """Bring each tensor to the largest size that any rank has along `dim`.

        Tensors without such an axis stay as they are.

        Raises:
            DistributedOperationException: the ranks' tensors differ in type or number of axes.
            TypeError: `data` holds something that is no tensor.
        """
        tensors, rebuild = _tensors_of("pad_across_processes", data)
        if self.world_size == 1:
            return data
        exchange = self._exchange("pad_across_processes", [t.detach() for t in tensors], bare=True)
        _require_equal(
            exchange, "Sizes may differ, types and axes may not.", compare=_without_sizes
        )
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
        brought = exchange.tensors
        if brought is None:
            reduced = (self._engine.all_reduce(tensor, op) for tensor in tensors)
        else:
            stacks = (torch.stack(list(ts)) for ts in zip(*brought, strict=True))
            reduced = (s.sum(0) if op == "sum" else s.amax(0) for s in stacks)
        return [total.to(t.dtype) for total, t in zip(reduced, tensors, strict=True)]

    def _exchange(
        self, call: str, tensors: Sequence[torch.Tensor], *, bare: bool = False
    ) -> Exchange:
        """Tell all ranks what this one brings, and learn what they bring.

        `bare` keeps the tensors themselves at home.
        """
        description = Description(call, tuple((t.dtype, tuple(t.shape)) for t in tensors))
        inline = not bare and fits(tensors)
        page = page_of(description, tensors if inline else ())
        pages = self._engine.all_gather(page.to(self._engine.header_device))
        exchange = opened([page.cpu() for page in pages], description)
        if exchange is None:
            return Exchange(self._engine.all_gather_object(description))
        return exchange


_GATHER_CURE = (
    "Use gather_for_metrics for a short last batch, or pad_across_processes before gather."
)


# ---------------------------------------------------------------- checks and small parts
def _require_equal(
    exchange: Exchange, cure: str, *, compare: Callable[[Description], object] | None = None
) -> None:
    """Raise, on every rank alike, unless all ranks bring the same to the same call."""
    if exchange.are_equal:
        return
    descriptions, compare = exchange.descriptions, compare or _as_it_is
    if all(compare(d) == compare(descriptions[0]) for d in descriptions):
        return
    if len({d.call for d in descriptions}) > 1:
        where = ", ".join(f"rank {r} is in {d.call}" for r, d in enumerate(descriptions))
        raise DistributedOperationException(
            f"The ranks have met in different collectives: {where}."
        )
    brought = "; ".join(f"rank {r} brings {d}" for r, d in enumerate(descriptions))
    raise DistributedOperationException(
        f"{descriptions[0].call} needs the same shapes on all ranks, but {brought}. {cure}"
    )


def _as_it_is(description: Description) -> object:
    return description


def _without_rows(description: Description) -> object:
    return description.call, [(dtype, shape[1:]) for dtype, shape in description.tensors]


def _without_sizes(description: Description) -> object:
    return description.call, [(dtype, len(shape)) for dtype, shape in description.tensors]


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
