"""Together: what the ranks do with one another. Every rank must call these, in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .metrics import gather_for_metrics
from .roles import Roles

if TYPE_CHECKING:
    from .collectives import Collectives, Reduction
    from .nested import Anything
    from .passes import Passes

__all__ = ["Together"]


class Together(Roles):
    """The collectives of a replica, for tensors in any nesting of lists, tuples and dicts.

    Shapes are compared before anything is sent: ranks that bring unequal ones, or that meet in
    different calls, all get an error that names them.
    """

    @property
    def _collectives(self) -> Collectives:
        raise NotImplementedError

    @property
    def _passes(self) -> Passes:
        raise NotImplementedError

    def wait_for_everyone(self) -> None:
        """Return once every rank has come here."""
        self._collectives.barrier()

    def gather(self, tensor: Anything) -> Anything:
        """Concatenate tensors over the ranks: (n, *rest) -> (world_size * n, *rest).

        Scalars become (world_size,). The result is detached and the same on every rank. Solo, it
        is `tensor` itself.
        """
        return self._collectives.gather(tensor)

    def gather_for_metrics(
        self,
        input_data: Anything,
        use_gather_object: bool = False,  # noqa: FBT001, FBT002  # upstream's order
    ) -> Anything:
        """As `gather`, for what was made of a prepared loader's batch: exactly its samples.

        What only filled up a last batch is left out. Lists and tuples of objects, one for each
        sample, are concatenated too; containers stay. Call it within the loop over the loader.
        """
        current = self._passes.current
        return gather_for_metrics(
            input_data, self._collectives, current, use_gather_object=use_gather_object
        )

    def gather_object(self, value: Anything) -> list[Any]:
        """The ranks' lists in one; values that are no lists become its items."""
        return self._collectives.gather_object(value)

    def reduce(
        self, tensor: Anything, reduction: Reduction = "sum", scale: float = 1.0
    ) -> Anything:
        """Combine tensors over the ranks element by element: "sum", "mean", "max" or "none".

        Always into new tensors. The mean of integers is floating point.
        """
        return self._collectives.reduce(tensor, reduction, scale)

    def broadcast(self, tensor: Anything, from_process: int = 0) -> Anything:
        """Fill tensors in place with those of one rank, and return them."""
        return self._collectives.broadcast(tensor, from_process)

    def pad_across_processes(
        self,
        tensor: Anything,
        dim: int = 0,
        pad_index: float = 0,
        pad_first: bool = False,  # noqa: FBT001, FBT002  # upstream's order
    ) -> Anything:
        """Bring tensors to the largest size that any rank has along `dim`."""
        return self._collectives.pad(tensor, dim, pad_index=pad_index, pad_first=pad_first)
