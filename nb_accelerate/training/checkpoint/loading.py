"""Loading: how all ranks go on from one checkpoint."""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from nb_accelerate.errors import SpecError

from .agreement import by_all, by_main
from .draft import finish, full_path
from .files import How, read_common, read_custom, read_loader_states, read_random_states
from .index import read_index
from .names import RNG_STATE_NAME
from .point import Saved, restore_positions, restore_windows
from .project import newest
from .reading import load
from .saving import contents_of, models_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from nb_accelerate.training.binding import Binding

    from .index import Index

__all__ = ["load_state", "location_of"]


def load_state(
    here: Binding,
    input_dir: str | os.PathLike[str] | None,
    load_kwargs: Mapping[str, Any] | None,
    model_kwargs: Mapping[str, Any],
) -> None:
    """Go on from a checkpoint; None is the newest automatically named one. A collective."""
    project, collectives = here.settings.project, here.collectives
    rest = dict(model_kwargs)
    location = location_of(rest.pop("map_location", None), here.engine.device)
    how = How(location=location, load=load_kwargs or {}, model=rest)
    number = by_main(collectives, "choose a checkpoint", partial(_chosen, here, input_dir))
    folder = full_path(project.folder_of(number) if input_dir is None else input_dir)
    by_main(collectives, f"load {folder}", partial(finish, folder))
    by_all(collectives, f"load {folder}", partial(_load, here, folder, how))
    loaded = re.fullmatch(r"checkpoint_(\d+)", folder.name)
    if project.automatic_checkpoint_naming and loaded:
        project.iteration = max(project.iteration, int(loaded[1]) + 1)


def location_of(asked: str | None, device: torch.device) -> torch.device | str:
    """Where files are read to.

    Raises:
        TypeError: neither "cpu" nor "on_device".
    """
    if asked not in (None, "cpu", "on_device"):
        raise TypeError(
            f"Unsupported optimizer map location passed: map_location={asked!r} is neither 'cpu' "
            f"nor 'on_device'."
        )
    return device if asked == "on_device" else "cpu"


def _chosen(here: Binding, input_dir: str | os.PathLike[str] | None) -> int:
    if input_dir is None:
        if not here.settings.project.automatic_checkpoint_naming:
            raise SpecError(
                "load_state() needs the folder to load. Only with "
                "ProjectConfiguration(automatic_checkpoint_naming=True) it finds the newest itself."
            )
        return newest(here.settings.project)
    if not full_path(input_dir).is_dir():
        raise SpecError(f"load_state({str(input_dir)!r}): there is no such folder.")
    return 0


def _load(here: Binding, folder: Path, how: How) -> None:
    models, contents = models_of(here), contents_of(here)
    for hook in here.keepsakes.load_hooks.values():
        hook(models, str(folder))
    read_common(folder, models, contents, how)
    read_custom(folder, contents.custom, how)
    rank, world_size = here.replica.rank, here.replica.world_size
    index = _index_of(folder, rank)
    saved = None if index is None else Saved(folder, index, rank, world_size, how.load)
    restored = set() if saved is None else restore_positions(saved, here.prepared)
    loaders = {n: one for n, one in enumerate(contents.loaders) if n not in restored}
    read_loader_states(folder, loaders, how)
    # Last: what was loaded before may have drawn random numbers.
    states = read_random_states(folder, rank, here.engine.device)
    if states is None:
        _warn_of_random_states(folder, rank, world_size)
    here.accumulation.step = _step_of(folder, states)
    if saved is not None:
        restore_windows(saved, here.accumulation, here.prepared)


def _index_of(folder: Path, rank: int) -> Index | None:
    """The folder's index, unless Accelerate has written another state over it since.

    The first rank's file tells; where each rank has a folder of its own, that one's.
    """
    files = (folder / f"{RNG_STATE_NAME}_{one}.pkl" for one in (0, rank))
    index, first = read_index(folder), next((file for file in files if file.exists()), None)
    if index is None or first is None:
        return None
    return index if load(first).get("nb_accelerate") == index.token else None


def _step_of(folder: Path, states: Mapping[str, Any] | None) -> int:
    first = folder / f"{RNG_STATE_NAME}_0.pkl"
    if states is None:
        states = load(first) if first.exists() else {}
    return int(states.get("step", 0))


def _warn_of_random_states(folder: Path, rank: int, world_size: int) -> None:
    warnings.warn(
        f"{folder} was saved by fewer ranks than the {world_size} of now: rank {rank} goes on with "
        f"random numbers of its own.",
        stacklevel=2,
    )
