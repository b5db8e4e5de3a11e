"""Positions: where a loader is, as plain data, and where a pass begins that goes on from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from .draws import plain
from .reading import Start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from .draws import RandomStates
    from .passes import Pass

__all__ = ["Journey", "Rounds", "described", "ended", "start_at"]


Draws: TypeAlias = "tuple[RandomStates, Sequence[torch.Tensor]]"


@dataclass(frozen=True, slots=True)
class Rounds:
    """What all ranks take of a loader at a time.

    Attributes:
        batch_size: of the loader; None where its batches have no common size.
        batches: of the loader's batches: one for each rank, or one that is split.
    """

    batch_size: int | None
    batches: int

    @property
    def length(self) -> int:
        """In samples, or in the loader's batches where these have no common size."""
        return self.batches * (self.batch_size or 1)


@dataclass(slots=True, eq=False)
class Journey:
    """How far a loader is, over its passes. One that skips shares it with what it was made of.

    Attributes:
        iteration: passes begun so far; the epoch that the samplers are told.
        current: the newest pass.
        start: where that one began.
        draws: what its order was drawn from: random states, and those of the user's generators.
        resumed: where the next one begins; None: where passes begin.
    """

    iteration: int = 0
    current: Pass | None = None
    start: Start | None = None
    draws: Draws | None = None
    resumed: Start | None = None

    def next_start(self, skipped: int) -> Start:
        """Where the next pass begins, which leaves out `skipped` batches whenever it begins."""
        resumed, self.resumed = self.resumed, None
        if resumed is None:
            return Start(epoch=self.iteration, skipped=skipped)
        # Who skips by hand counts from the beginning of the epoch.
        return replace(resumed, skipped=skipped, offset=0) if skipped else resumed

    def begin(self, current: Pass, start: Start, draws: Draws) -> None:
        """A pass begins there, its order drawn from `draws`."""
        self.current, self.start, self.draws = current, start, draws
        self.iteration = start.epoch + 1

    def resume(self, start: Start) -> None:
        """Let the next pass begin there."""
        self.resumed, self.iteration = start, start.epoch
        if self.current is not None and self.current.is_over:
            self.current = None  # what it told of its end is no more so

    def where(self, skipped: int, generators: Sequence[torch.Generator]) -> Start:
        """Where it is: its own `skipped` counts the batches that have been handed out.

        Args:
            skipped: that its passes begin with.
            generators: of its samplers.
        """
        current, start = self.current, self.start
        if current is not None and start is not None and not current.is_over:
            random, states = self.draws or (None, ())
            done = max(start.skipped, start.told) + current.taken
            return replace(start, skipped=done, told=0, random=random, generators=states)
        if self.resumed is not None:
            return self.resumed
        states = tuple(generator.get_state() for generator in generators)
        return Start(epoch=self.iteration, skipped=skipped, generators=states)


def described(where: Start, rounds: Rounds, seed: int | None) -> dict[str, Any]:
    """`where` as plain data."""
    return {
        "epoch": where.epoch,
        "batches": where.skipped,
        "offset": where.offset,
        "batch_size": rounds.batch_size,
        "batches_of_a_round": rounds.batches,
        "seed": seed,
        "random": None if where.random is None else plain(where.random),
        "generators": list(where.generators),
    }


def start_at(position: Mapping[str, Any], rounds: Rounds) -> Start:
    """Where `position` is for who takes `rounds` at a time."""
    start = Start(
        epoch=position["epoch"],
        skipped=position["batches"],
        offset=position["offset"],
        random=position["random"],
        generators=tuple(position["generators"]),
    )
    then = Rounds(position["batch_size"], position["batches_of_a_round"])
    if then == rounds or not start.skipped:
        return start
    return replace(start, skipped=0, offset=start.offset + start.skipped * then.length)


def ended(position: Mapping[str, Any]) -> dict[str, Any]:
    """The beginning of the pass after that of `position`."""
    fresh: dict[str, Any] = {"batches": 0, "offset": 0, "random": None, "generators": []}
    return {**position, **fresh, "epoch": position["epoch"] + 1}
