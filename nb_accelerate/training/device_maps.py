"""Device maps: models whose layers were loaded onto several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nb_accelerate.errors import SpecError

from .joining import environment, is_yes

if TYPE_CHECKING:
    from torch import nn

    from .engine import Engine

__all__ = ["is_spread", "require_trainable_map", "verify_device_map"]


def is_spread(model: nn.Module) -> bool:
    """Whether the layers of `model` itself lie on more than one device: such a model stays so."""
    return len(set(_map_of(model).values())) > 1


def verify_device_map(model: nn.Module) -> bool:
    """Whether `model` or any part of it lies on more than one device."""
    return any(is_spread(module) for module in model.modules())


def require_trainable_map(model: nn.Module, engine: Engine) -> None:
    """Raise `SpecError` for a model that cannot be trained where it lies."""
    places = {str(place) for place in _map_of(model).values()}
    is_quantized = any(
        getattr(model, name, False) for name in ("is_loaded_in_8bit", "is_loaded_in_4bit")
    )
    if is_quantized and places & {"cpu", "disk"}:
        raise SpecError(
            f"This model was loaded in 8 or 4 bits with CPU or disk offload, which cannot be "
            f"trained: its hf_device_map names {', '.join(sorted(places))}. Load it on one "
            f"accelerator: device_map={{'': 0}}."
        )
    if (
        engine.world_size > 1
        and verify_device_map(model)
        and not is_yes(environment().get("ACCELERATE_BYPASS_DEVICE_MAP", ""))
    ):
        raise SpecError(
            f"This model lies on several devices ({', '.join(sorted(places)) or 'in its parts'}), "
            f"but {engine.world_size} processes train together, each on its own device. Load it "
            f"with device_map={{'': accelerator.device}}, or launch one process."
        )


def _map_of(model: nn.Module) -> dict[str, Any]:
    found = getattr(model, "hf_device_map", None)
    return found if isinstance(found, dict) else {}
