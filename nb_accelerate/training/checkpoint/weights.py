"""Weights: the files of a model, and how their names meet a model's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from nb_accelerate.errors import CheckpointError, SpecError

from .names import SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME, weights_names
from .reading import load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

    from nb_accelerate.training.nested import Anything

__all__ = [
    "fitted",
    "load_weights",
    "same_memory",
    "tensors_of",
    "unaliased",
    "write_state",
    "write_tensors",
]

State = dict[str, Any]


# ---------------------------------------------------------------- writing
def write_state(path: Path, state: Anything) -> None:
    """Write a state, in the format that the name's ending says."""
    if path.suffix == ".safetensors":
        write_tensors(path, state)
    else:
        torch.save(state, path)


def write_tensors(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors in the format of safetensors, to a file of any name."""
    from safetensors.torch import save_file

    save_file(tensors_of(state), path, metadata={"format": "pt"})


def tensors_of(state: Mapping[str, Any]) -> State:
    """What safetensors can hold of it: each tensor once.

    Raises:
        SpecError: there are other things than tensors.
    """
    others = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise SpecError(
            f"safetensors holds tensors alone, but the state has {', '.join(others)}. Save with "
            f"safe_serialization=False."
        )
    return unaliased(state)


def unaliased(state: Mapping[str, Any]) -> State:
    """Each tensor once, under its first name, and none in another one's memory."""
    seen: set[object] = set()
    storages: set[int] = set()
    result: State = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            result[name] = value
        elif (key := same_memory(value)) is None or key not in seen:
            seen.add(key)
            storage = 0 if key is None else value.untyped_storage().data_ptr()
            # A part of what is there already: safetensors refuses to write the two as they are.
            shared = storage != 0 and storage in storages
            own = value.detach().contiguous()
            result[name] = own.clone() if shared else own
            storages.add(storage)
    return result


def same_memory(tensor: torch.Tensor) -> object:
    """Equal for two tensors that are one and the same; None for one that shares nothing."""
    if tensor.is_meta or not tensor.numel():
        return None
    place = tensor.device, tensor.data_ptr(), tensor.dtype
    return *place, tuple(tensor.shape), tensor.stride()


# ---------------------------------------------------------------- reading
def load_weights(
    model: nn.Module, place: tuple[Path, int], how: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> None:
    """Load one model of a checkpoint.

    Args:
        model: to load into.
        place: the checkpoint's folder, and the number of the model in it.
        how: for `load`.
        kwargs: for the model's load_state_dict.

    Raises:
        CheckpointError: there are no weights for it.
    """
    model.load_state_dict(fitted(_read(*place, how), model.state_dict()), **kwargs)


def _read(folder: Path, number: int, how: Mapping[str, Any]) -> State:
    single = weights_names(number)
    for name in single:
        if (folder / name).exists():
            return _read_file(folder / name, how)
    for name in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME) if number == 0 else ():
        if (folder / name).exists():
            return _read_shards(folder / name, how)
    there = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    raise CheckpointError(
        f"{folder} holds no weights for model {number} of those that were prepared: neither "
        f"{single[0]} nor {single[1]}. There is {there}."
    )


def _read_shards(index: Path, how: Mapping[str, Any]) -> State:
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    state: State = {}
    for name in dict.fromkeys(names):
        state |= _read_file(index.parent / name, how)
    return state


def _read_file(path: Path, how: Mapping[str, Any]) -> State:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path, device=str(how["map_location"]))
    state: State = load(path, **how)
    return state


def fitted(state: State, own: Mapping[str, Any]) -> State:
    """`state` under the names that `own` has for it.

    Wrappers put a part of their own into names, and tied weights are written once.
    """
    plain = {_plain(name): name for name in state}
    result: State = {}
    for name in own:
        source = name if name in state else plain.get(_plain(name))
        if source is not None:
            result[name] = state[source]
    used = {_plain(name) for name in result}
    result |= {name: value for name, value in state.items() if _plain(name) not in used}
    return result | _tied(result, own)


def _tied(state: State, own: Mapping[str, Any]) -> State:
    """What `state` lacks, but has under the name of a weight that is the same one."""
    values = {same_memory(own[n]): state[n] for n in own
              if n in state and isinstance(own[n], torch.Tensor)}  # fmt: skip
    values.pop(None, None)
    missing = {n: same_memory(t) for n, t in own.items()
               if n not in state and isinstance(t, torch.Tensor)}  # fmt: skip
    return {name: values[key] for name, key in missing.items() if key in values}


def _plain(name: str) -> str:
    """A weight's name without what DDP and torch.compile put into it."""
    return name.removeprefix("module.").replace("_orig_mod.", "")
