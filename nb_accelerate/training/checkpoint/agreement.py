"""Agreement: what all ranks do at once; when one of them cannot, none goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from nb_accelerate.errors import CheckpointError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nb_accelerate.training.collectives import Collectives

__all__ = ["by_all", "by_main"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str
    is_a_refusal: bool


@dataclass(frozen=True, slots=True)
class _Done:
    value: object


def by_all(collectives: Collectives, what: str, action: Callable[[], T]) -> list[T]:
    """Do `action` on every rank; its values, by rank.

    An error of one rank is raised there, and becomes an error of all others: none of them waits
    for a rank that has left.

    Args:
        collectives: the ranks.
        what: what they do, for the error: "write the checkpoint to /x".
        action: its value is pickled.

    Raises:
        SpecError: another rank was refused what it asked for.
        CheckpointError: another rank failed.
    """
    if collectives.world_size == 1:
        return [action()]
    try:
        value = action()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        collectives.gather_object([_Failure(text, isinstance(error, SpecError))])
        raise
    outcomes = cast("list[_Done | _Failure]", collectives.gather_object([_Done(value)]))
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome, _Failure):
            kind = SpecError if outcome.is_a_refusal else CheckpointError
            raise kind(f"Rank {rank} could not {what}: {outcome.text}")
    return [cast("T", cast("_Done", outcome).value) for outcome in outcomes]


def by_main(collectives: Collectives, what: str, action: Callable[[], T]) -> T:
    """Do `action` on rank 0 alone; its value on every rank. Errors as in `by_all`."""
    first, *_ = by_all(collectives, what, lambda: action() if collectives.rank == 0 else None)
    return cast("T", first)
