"""Replica: a worker's place in a run, and the one ambient look-up of it.

A process that no launch made is a replica too, alone in its world: `SOLO`; unless another launcher
made it one of several, and it has settled as that.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "SOLO",
    "Replica",
    "Reporter",
    "Silent",
    "acting_as",
    "current_replica",
    "ground_replica",
    "settle",
]


class Reporter(Protocol):
    """Where a replica's metrics and progress go. No call blocks, waits for a device or fails."""

    def metrics(self, values: Mapping[str, object], step: int | None) -> None:
        """Tell one record; values are numbers or one-element tensors, read at this moment."""

    def progress(self, description: str, done: int, total: int | None, *, finished: bool) -> None:
        """Tell how far a loop is."""

    def should_stop(self) -> bool:
        """Whether the user has asked this run to end at the next point that suits."""


class Silent:
    """The reporter of a process that nobody watches."""

    def metrics(self, values: Mapping[str, object], step: int | None) -> None:
        """Drop them."""

    def progress(self, description: str, done: int, total: int | None, *, finished: bool) -> None:
        """Drop it."""

    def should_stop(self) -> bool:
        """Nobody can ask."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A worker's place in a run: who it is, what it computes on, whom it reports to."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    device: str = "auto"
    """A torch device such as "cuda:1"; "auto" (solo only): the first accelerator, else the CPU."""
    mixed_precision: str = "no"
    """What the launch asked for; an Accelerator that is told otherwise obeys that."""
    gradient_accumulation_steps: int = 1
    reporter: Reporter = field(default_factory=Silent)
    shared: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What this replica's code shares without handing it over: see `training.states`."""


SOLO = Replica()

_current: ContextVar[Replica | None] = ContextVar("nb_accelerate_replica", default=None)
_of_process: list[Replica] = [SOLO]


def current_replica() -> Replica:
    """The replica that the calling code belongs to; `SOLO` outside of any launch."""
    return _current.get() or _of_process[-1]


def ground_replica() -> Replica:
    """What this process is outside of all launches: `SOLO`, or what it has settled as."""
    return _of_process[0]


def settle(replica: Replica) -> None:
    """Be `replica` from now on: for a process that another launcher started."""
    _of_process[0] = replica


@contextmanager
def acting_as(replica: Replica, *, whole_process: bool = False) -> Iterator[Replica]:
    """Be `replica` within the block.

    `whole_process` covers threads that the block starts as well, which do not inherit context
    variables; it is for processes that hold one replica only.
    """
    token = _current.set(replica)
    if whole_process:
        _of_process.append(replica)
    try:
        yield replica
    finally:
        if whole_process:
            _of_process.remove(replica)
        _current.reset(token)
