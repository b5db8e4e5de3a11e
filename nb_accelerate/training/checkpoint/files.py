"""Files: the parts of a checkpoint that Accelerate knows, written one by one and read again."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from nb_accelerate.errors import CheckpointError, SpecError

from .names import (
    CUSTOM_NAME,
    LOADER_STATE_NAME,
    OPTIMIZER_NAME,
    RNG_STATE_NAME,
    SAFE_WEIGHTS_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    WEIGHTS_NAME,
    numbered,
)
from .randomness import random_states, restore_random_states
from .reading import load
from .weights import load_weights, write_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from nb_accelerate.training.nested import Anything

__all__ = [
    "Contents",
    "How",
    "Stateful",
    "read_common",
    "read_custom",
    "read_loader_states",
    "read_random_states",
    "require_stateful",
    "states_of",
    "write_random_states",
    "write_states",
]


@runtime_checkable
class Stateful(Protocol):
    """What can be saved and loaded again."""

    def state_dict(self) -> Anything:
        """What to save."""

    def load_state_dict(self, state_dict: Anything, /) -> object:
        """Be as that says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a checkpoint is made of, apart from the weights and from what differs by rank."""

    optimizers: Sequence[Stateful] = ()
    schedulers: Sequence[Stateful] = ()
    loaders: Sequence[object] = ()
    scaler: Stateful | None = None
    custom: Sequence[Stateful] = ()


def require_stateful(objects: Iterable[object]) -> None:
    """Raise `SpecError` that names all that cannot be saved and loaded."""
    lacking = [
        f"Item at index {number}: {type(one).__name__}"
        for number, one in enumerate(objects)
        if not isinstance(one, Stateful)
    ]
    if lacking:
        raise SpecError(
            f"register_for_checkpointing takes objects with state_dict and load_state_dict, which "
            f"these are not: {'; '.join(lacking)}. Give their classes both, or register what holds "
            f"them."
        )


# ---------------------------------------------------------------- writing
def states_of(
    weights: Sequence[Mapping[str, Any]], contents: Contents, *, safe: bool
) -> dict[str, Any]:
    """What is the same on all ranks, by the names of its files.

    To be called on all ranks, though one writes: a `state_dict` may ask other ranks.
    """
    name = SAFE_WEIGHTS_NAME if safe else WEIGHTS_NAME
    states: dict[str, Any] = {numbered(name, n): state for n, state in enumerate(weights)}
    states |= {name: one.state_dict() for name, one in _named(contents)}
    for number, loader in enumerate(contents.loaders):
        if getattr(loader, "use_stateful_dataloader", False):
            state = loader.state_dict()  # type: ignore[attr-defined]  # such loaders have one
            states[numbered(f"{LOADER_STATE_NAME}.bin", number)] = state
    return states


def write_states(folder: Path, states: Mapping[str, Any]) -> None:
    """Write them, each in the format that its name says."""
    for name, state in states.items():
        write_state(folder / name, state)


def _named(contents: Contents) -> list[tuple[str, Stateful]]:
    """Each of what is saved by its state_dict, with its file."""
    kinds = ((OPTIMIZER_NAME, contents.optimizers), (SCHEDULER_NAME, contents.schedulers))
    of_torch = [(numbered(f"{name}.bin", n), one) for name, ones in kinds
                for n, one in enumerate(ones)]  # fmt: skip
    own = [(f"{CUSTOM_NAME}_{n}.pkl", one) for n, one in enumerate(contents.custom)]
    return [*of_torch, *([(SCALER_NAME, contents.scaler)] if contents.scaler else []), *own]


def write_random_states(
    folder: Path, rank: int, step: int, device: torch.device, **more: object
) -> None:
    """Write what a rank's generators are at; `more` goes into the same file."""
    states = {"step": step, **random_states(device), **more}
    torch.save(states, folder / f"{RNG_STATE_NAME}_{rank}.pkl")


# ---------------------------------------------------------------- reading
@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How to read.

    Attributes:
        location: the device to read tensors to.
        load: for `load`.
        model: for a model's load_state_dict.
    """

    location: Anything = "cpu"
    load: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)


def read_common(folder: Path, models: Sequence[nn.Module], contents: Contents, how: How) -> None:
    """Load what is the same on all ranks, but for custom states.

    Raises:
        CheckpointError: a file is missing.
        UnsafeCheckpoint: one holds what could run code.
    """
    for number, model in enumerate(models):
        load_weights(model, (folder, number), {"map_location": how.location, **how.load}, how.model)
    for name, one in _named(Contents(optimizers=contents.optimizers)):
        one.load_state_dict(_read(folder, name, how.load, map_location=how.location))
    for name, one in _named(Contents(schedulers=contents.schedulers)):
        one.load_state_dict(_read(folder, name, how.load))
    if contents.scaler is not None and (folder / SCALER_NAME).exists():
        contents.scaler.load_state_dict(_read(folder, SCALER_NAME, how.load))
    elif contents.scaler is not None:
        warnings.warn(
            f"{folder} was not saved in fp16: it has no {SCALER_NAME}, and the scale of the loss "
            f"begins anew.",
            stacklevel=2,
        )


def read_loader_states(folder: Path, loaders: Mapping[int, object], how: How) -> None:
    """Load what loaders that keep a state of their own have saved."""
    for number, loader in loaders.items():
        name = numbered(f"{LOADER_STATE_NAME}.bin", number)
        if getattr(loader, "use_stateful_dataloader", False) and (folder / name).exists():
            state = _read(folder, name, how.load)
            loader.load_state_dict(state)  # type: ignore[attr-defined]


def read_custom(folder: Path, custom: Sequence[Stateful], how: How) -> None:
    """Load the states of the user's own objects.

    Raises:
        CheckpointError: there are more or fewer than were registered.
        UnsafeCheckpoint: one holds objects of classes, and `how` does not allow it.
    """
    pattern = re.compile(rf"{CUSTOM_NAME}_\d+\.pkl")
    there = [path.name for path in folder.iterdir() if pattern.fullmatch(path.name)]
    if len(there) != len(custom):
        raise CheckpointError(
            f"{folder} holds the states of {len(there)} objects, but register_for_checkpointing "
            f"was called for {len(custom)}. Register the same objects, in the same order, as when "
            f"it was saved."
        )
    for name, one in _named(Contents(custom=custom)):
        one.load_state_dict(_read(folder, name, how.load, map_location="cpu"))


def read_random_states(folder: Path, rank: int, device: torch.device) -> dict[str, Any] | None:
    """Restore a rank's generators; what else its file holds. None when it has no file."""
    path = folder / f"{RNG_STATE_NAME}_{rank}.pkl"
    if not path.exists():
        return None
    states: dict[str, Any] = load(path, map_location="cpu")
    restore_random_states(states, device)
    return states


def _read(folder: Path, name: str, how: Mapping[str, Any], **kwargs: Anything) -> Anything:
    if not (folder / name).exists():
        there = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise CheckpointError(f"{folder} has no {name}, which was asked for. There is {there}.")
    return load(folder / name, **(kwargs | dict(how)))
