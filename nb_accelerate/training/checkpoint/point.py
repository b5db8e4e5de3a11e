"""Point: where in the training a checkpoint is made, between two updates and between two batches.

Accelerate keeps neither. With it a resumed training gets the batches that are left, and a window of
gradients that was open goes on with the gradients that it had.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch

from nb_accelerate.training.accumulation import Window
from nb_accelerate.training.stateful import has_own_state

from .names import GRADIENTS_NAME, SAMPLER_NAME, numbered
from .reading import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nb_accelerate.training.accumulation import Accumulation
    from nb_accelerate.training.prepared import Prepared

    from .files import Stateful
    from .index import Index

__all__ = [
    "Point",
    "Positioned",
    "Saved",
    "point_of",
    "restore_positions",
    "restore_windows",
    "write_gradients",
    "write_positions",
]


@runtime_checkable
class Positioned(Protocol):
    """A loader that can tell where it is, and go on from there."""

    def position(self) -> dict[str, Any]:
        """Where its pass is, or its next one; data that torch.save can write."""

    def restore(self, position: dict[str, Any]) -> None:
        """Let the next pass give what was left at `position`. Draws no random numbers."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of ours as one rank sees it.

    Attributes:
        rank, world_size: who loads it.
        how: for `load`.
    """

    folder: Path
    index: Index
    rank: int
    world_size: int
    how: Mapping[str, Any]

    @property
    def is_of_as_many(self) -> bool:
        """Whether as many ranks have saved it as load it."""
        return self.index.world_size == self.world_size

    @property
    def own_rank(self) -> int:
        """The rank whose part of it this rank goes on with."""
        return self.rank if self.is_of_as_many else 0

    def read(self, name: str) -> dict[str, Any]:
        """A file of ours in it; empty where there is none."""
        path = self.folder / name
        return load(path, map_location="cpu", **self.how) if path.exists() else {}


@dataclass(frozen=True, slots=True)
class Point:
    """One rank's point.

    Attributes:
        positions: of each prepared loader; None of one that cannot tell.
        windows: of accumulation, those that are open; their models by number.
    """

    positions: list[dict[str, Any] | None]
    windows: list[dict[str, Any]]


def point_of(accumulation: Accumulation, prepared: Prepared) -> Point:
    """Where this rank is."""
    positions = [_position_of(loader) for loader in prepared.loaders]
    open_windows = [window for window in accumulation.windows if window.count]
    return Point(positions, [_described(window, prepared) for window in open_windows])


# ---------------------------------------------------------------- loaders
def _position_of(loader: object) -> dict[str, Any] | None:
    if getattr(loader, "use_stateful_dataloader", False):
        # With what the dataset says of itself, and the position too.
        state: dict[str, Any] = cast("Stateful", loader).state_dict()
        return state
    return loader.position() if isinstance(loader, Positioned) else None


def _restore(loader: Positioned, position: dict[str, Any], *, as_it_was: bool) -> None:
    # Where a pass has come to its end, a stateful loader would begin another: what is left is none.
    if as_it_was and has_own_state(position) and not position["_iterator_finished"]:
        cast("Stateful", loader).load_state_dict(position)
    else:
        loader.restore(position.get("position", position))


def write_positions(folder: Path, points: Sequence[Point]) -> None:
    """Write where the loaders are on all ranks."""
    for number in range(len(points[0].positions)):
        by_rank = [point.positions[number] for point in points]
        if by_rank[0] is not None:
            name = numbered(f"{SAMPLER_NAME}.bin", number)
            torch.save({"by_rank": by_rank}, folder / name)


def restore_positions(saved: Saved, prepared: Prepared) -> set[int]:
    """Let the loaders go on from where they were; the numbers of those that could.

    With another number of ranks, all go on from where rank 0 was, which is where all were, counted
    in samples of the whole dataset.
    """
    restored = set()
    for number, loader in enumerate(prepared.loaders):
        by_rank = saved.read(numbered(f"{SAMPLER_NAME}.bin", number)).get("by_rank")
        if by_rank and isinstance(loader, Positioned):
            _restore(loader, by_rank[saved.own_rank], as_it_was=saved.is_of_as_many)
            restored.add(number)
    return restored


# ---------------------------------------------------------------- windows of accumulation
def _described(window: Window, prepared: Prepared) -> dict[str, Any]:
    numbers = {id(model): number for number, model in enumerate(prepared.models)}
    return {
        "models": [numbers.get(id(model)) for model in window.models],
        "num_steps": window.num_steps,
        "count": window.count,
        "tokens": window.tokens,
        "divided_by": window.divided_by,
    }


def restore_windows(saved: Saved, accumulation: Accumulation, prepared: Prepared) -> None:
    """Let the windows of accumulation go on from where they were, with their gradients."""
    described = saved.index.windows[saved.own_rank]
    if not saved.is_of_as_many and any(one["tokens"] is not None for one in described):
        warnings.warn(
            f"{saved.folder} was saved by {saved.index.world_size} ranks within a window of "
            f"accumulation whose micro-batches are weighed by tokens; with {saved.world_size} "
            f"ranks the window begins anew.",
            stacklevel=2,
        )
        described = []
    known = range(len(prepared.models))
    windows = [
        Window(**(one | {"models": tuple(prepared.models[number] for number in one["models"])}))
        for one in described
        if all(number in known for number in one["models"])
    ]
    accumulation.reopen(windows)
    gradients = _gradients(saved) if windows else {}
    for number, parameter in enumerate(prepared.parameters().values()):
        gradient = gradients.get(number)
        parameter.grad = None if gradient is None else gradient.to(parameter.device)


def write_gradients(
    folder: Path, accumulation: Accumulation, prepared: Prepared, rank: int
) -> None:
    """Write this rank's gradients, if a window is open that they have been collected in."""
    if not any(window.count for window in accumulation.windows):
        return
    gradients = {
        number: parameter.grad
        for number, parameter in enumerate(prepared.parameters().values())
        if parameter.grad is not None
    }
    torch.save({"gradients": gradients}, folder / f"{GRADIENTS_NAME}_{rank}.bin")


def _gradients(saved: Saved) -> dict[int, torch.Tensor]:
    """This rank's gradients by number; with another number of ranks the mean of all."""
    ranks = [saved.rank] if saved.is_of_as_many else range(saved.index.world_size)
    total: dict[int, torch.Tensor] = {}
    for rank in ranks:
        gradients = saved.read(f"{GRADIENTS_NAME}_{rank}.bin").get("gradients", {})
        for number, gradient in gradients.items():
            total[number] = total[number] + gradient if number in total else gradient
    return {n: t / len(ranks) for n, t in total.items()} if len(ranks) > 1 else total
