"""Loading a checkpoint's weights into a model, as upstream's big-model functions do at their least.

Models that do not fit are not for this version: what would spread one over devices is refused.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_accelerate.errors import NotInThisVersion, SpecError
from nb_accelerate.training.checkpoint.names import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)
from nb_accelerate.training.checkpoint.reading import load
from nb_accelerate.training.checkpoint.weights import fitted

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import torch
    from torch import nn

__all__ = ["load_checkpoint_in_model", "load_state_dict"]

State = dict[str, Any]

_PLACES = (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME)


def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: str | os.PathLike[str],
    device_map: Mapping[str, Any] | str | None = None,
    offload_folder: object = None,
    dtype: torch.dtype | None = None,
    *,
    strict: bool = False,
    **others: object,
) -> None:
    """Load weights into a model that is on its device, or on "meta" and comes to the CPU.

    Args:
        model: to load into.
        checkpoint: a file of weights, an index of shards, or a folder with either.
        device_map: only None, or one device for all as {"": device}.
        offload_folder: without a use as long as nothing is kept elsewhere.
        dtype: what floating-point weights are turned into.
        strict: refuse names that only the model has, or only the checkpoint.
        **others: upstream's settings of models that are spread over devices; none is here.

    Raises:
        NotInThisVersion: the model is to be spread over devices.
        SpecError: there are no weights.
    """
    del offload_folder
    asked = {name: value for name, value in others.items() if value}
    device_map = device_map or {}
    if (
        isinstance(device_map, str)
        or device_map.keys() - {""}
        or asked.keys() - {"full_state_dict"}
    ):
        raise NotInThisVersion(
            f"load_checkpoint_in_model was called with device_map={device_map!r}, {asked!r}, but "
            "models that are spread over devices are not in this version. Without a device_map "
            "the model is loaded where it is."
        )
    state = _cast(_read(Path(checkpoint)), dtype)
    own = model.state_dict()
    if unused := sorted(state.keys() - own.keys()):
        logging.getLogger("accelerate.utils.modeling").warning(
            "%s holds weights that %s has no place for: %s.",
            checkpoint, type(model).__name__, ", ".join(unused),
        )  # fmt: skip
    is_meta = any(tensor.is_meta for tensor in model.parameters())
    model.load_state_dict(fitted(state, own), strict=strict, assign=is_meta)
    if "" in device_map:
        model.to(device_map[""])


def load_state_dict(
    checkpoint_file: str | os.PathLike[str], device_map: Mapping[str, object] | None = None
) -> State:
    """The weights of one file by name, on the CPU or on the one device of a map {"": device}."""
    places = set((device_map or {"": "cpu"}).values())
    if len(places) != 1 or places & {"disk"}:
        raise NotInThisVersion(
            f"load_state_dict was called with device_map={device_map!r}, but a model on several "
            "devices is not in this version. Give one device for all: {'': device}."
        )
    return _read_file(Path(checkpoint_file), str(places.pop()))


def _read(place: Path) -> State:
    if place.is_dir():
        found = next((place / name for name in _PLACES if (place / name).exists()), None)
        if found is None:
            raise SpecError(f"{place} holds no weights: none of {', '.join(_PLACES)} is there.")
        place = found
    if place.suffix != ".json":
        return _read_file(place, "cpu")
    names = json.loads(place.read_text(encoding="utf-8"))["weight_map"].values()
    shards = [_read_file(place.parent / name, "cpu") for name in dict.fromkeys(names)]
    return {name: tensor for shard in shards for name, tensor in shard.items()}


def _read_file(path: Path, device: str) -> State:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path, device=device)
    state: State = load(path, map_location=device)
    return state


def _cast(state: State, dtype: torch.dtype | None) -> State:
    if dtype is None:
        return state
    return {
        n: tensor.to(dtype) if tensor.is_floating_point() else tensor for n, tensor in state.items()
    }
