"""By hand: Accelerate's functions for one folder, for code that calls them without an Accelerator.

They write what Accelerate's do, file by file into the folder as it stands. `save_state` is what
makes one whole of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nb_accelerate.replica import current_replica
from nb_accelerate.training.engine import engine_for

from .files import (
    Contents,
    How,
    Stateful,
    read_common,
    read_loader_states,
    read_random_states,
    states_of,
    write_random_states,
    write_states,
)
from .loading import location_of
from .model_files import save, writes
from .names import CUSTOM_NAME
from .reading import load

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn

    from nb_accelerate.training.nested import Anything

__all__ = [
    "load_accelerator_state",
    "load_custom_state",
    "save_accelerator_state",
    "save_custom_state",
]


def save_accelerator_state(  # noqa: PLR0913  # the signature is Accelerate's
    output_dir: str | os.PathLike[str],
    model_states: Sequence[Mapping[str, Any]],
    optimizers: Sequence[Stateful],
    schedulers: Sequence[Stateful],
    dataloaders: Sequence[object],
    process_index: int,
    step: int,
    scaler: torch.amp.GradScaler | None = None,
    save_on_each_node: bool = False,  # noqa: FBT001, FBT002
    safe_serialization: bool = True,  # noqa: FBT001, FBT002
) -> Path:
    """Write states to a folder that exists: the main process what is common, each rank its own."""
    folder = Path(output_dir)
    contents = Contents(
        optimizers=optimizers, schedulers=schedulers, loaders=dataloaders,
        scaler=cast("Stateful | None", scaler),
    )  # fmt: skip
    states = states_of(model_states, contents, safe=safe_serialization)
    if writes(current_replica(), on_each_node=save_on_each_node):
        write_states(folder, states)
    device = engine_for(current_replica()).device
    write_random_states(folder, process_index, step, device)
    return folder


def load_accelerator_state(  # noqa: PLR0913  # the signature is Accelerate's
    input_dir: str | os.PathLike[str],
    models: Sequence[nn.Module],
    optimizers: Sequence[Stateful],
    schedulers: Sequence[Stateful],
    dataloaders: Sequence[object],
    process_index: int,
    scaler: torch.amp.GradScaler | None = None,
    map_location: str | None = None,
    load_kwargs: Mapping[str, Any] | None = None,
    **load_model_func_kwargs: Anything,
) -> dict[str, Any]:
    """Load states from a folder.

    Returns:
        What an Accelerator is to go on with: {"step": ...}, when the folder tells.
    """
    folder, device = Path(input_dir), engine_for(current_replica()).device
    location = location_of(map_location, device)
    how = How(location=location, load=load_kwargs or {}, model=load_model_func_kwargs)
    contents = Contents(
        optimizers=optimizers, schedulers=schedulers, scaler=cast("Stateful | None", scaler)
    )
    read_common(folder, models, contents, how)
    read_loader_states(folder, dict(enumerate(dataloaders)), how)
    states = read_random_states(folder, process_index, device) or {}
    return {name: states[name] for name in ("step",) if name in states}


def save_custom_state(
    obj: Stateful,
    path: str | os.PathLike[str],
    index: int = 0,
    save_on_each_node: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Write the state of one object into a checkpoint's folder."""
    save(obj.state_dict(), Path(path) / f"{CUSTOM_NAME}_{index}.pkl", save_on_each_node)


def load_custom_state(
    obj: Stateful, path: str | os.PathLike[str], index: int = 0, **kwargs: Anything
) -> None:
    """Load the state of one object from a checkpoint's folder; `kwargs` are for `load`."""
    file = Path(path) / f"{CUSTOM_NAME}_{index}.pkl"
    obj.load_state_dict(load(file, **({"map_location": "cpu"} | kwargs)))
