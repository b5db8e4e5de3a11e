"""Randomness: the states of all generators that a training draws from by default."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nb_accelerate.training.nested import Anything

__all__ = ["random_states", "restore_random_states"]


def random_states(device: torch.device) -> dict[str, Any]:
    """They are named as in Accelerate's files; those of devices are lists, one for each."""
    states: dict[str, Any] = {
        "random_state": random.getstate(),
        "numpy_random_seed": np.random.get_state(),
        "torch_manual_seed": torch.get_rng_state(),
    }
    if device.type != "cpu":
        module = torch.get_device_module(device)
        states[_key(device)] = (
            module.get_rng_state_all()
            if hasattr(module, "get_rng_state_all")
            else [module.get_rng_state()]
        )
    return states


def restore_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Let all generators go on from there; one that `states` has nothing of stays as it is."""
    random.setstate(_tuples(states["random_state"]))
    np.random.set_state(states["numpy_random_seed"])
    torch.set_rng_state(states["torch_manual_seed"].cpu())
    of_devices = states.get(_key(device), ())
    if not of_devices:
        return
    module = torch.get_device_module(device)
    if not hasattr(module, "get_rng_state_all"):
        module.set_rng_state(of_devices[0].cpu())
        return
    index = device.index if device.index >= 0 else torch.accelerator.current_device_index()
    if index < len(of_devices):
        module.set_rng_state(of_devices[index].cpu(), index)


def _key(device: torch.device) -> str:
    return f"torch_{device.type}_manual_seed"


def _tuples(state: Anything) -> Anything:
    """`random.setstate` takes tuples; what was converted on the way has lists."""
    version, numbers, gauss = state
    return version, tuple(numbers), gauss
