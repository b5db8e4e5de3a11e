"""Settings: what an Accelerator was asked for, checked. They travel; what follows from them not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nb_accelerate.errors import SpecError

from .loaders import DataLoaderConfiguration
from .precision import parse_precision

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Settings", "refuse_unsupported"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an Accelerator was asked for; None leaves it to the replica.

    Raises:
        SpecError: a value that cannot be.
    """

    device_placement: bool = True
    mixed_precision: str | None = None
    gradient_accumulation_steps: int | None = None
    cpu: bool = False
    loaders: DataLoaderConfiguration = field(default_factory=DataLoaderConfiguration)
    step_scheduler_with_optimizer: bool = True
    scheduler_steps_per_update: int | None = None

    def __post_init__(self) -> None:
        for name in ("gradient_accumulation_steps", "scheduler_steps_per_update"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SpecError(f"{name}={value!r}, but it counts steps: 1, 2, 3 and so on.")


def refuse_unsupported(**arguments: object) -> None:
    """Raise `SpecError` for the first argument that was given: none is ignored in silence."""
    for name, value in arguments.items():
        if value is not None:
            raise SpecError(
                f"Accelerator({name}={value!r}) is not supported by this version of "
                f"nb_accelerate. Leave {name} out."
            )


def asked_precision(mixed_precision: object, fp16: object) -> str | None:
    """The precision asked for, also in the way that Accelerate has long removed."""
    if fp16:
        warnings.warn(
            "Accelerator(fp16=True) is the old way to write mixed_precision='fp16'.",
            FutureWarning,
            stacklevel=3,
        )
        mixed_precision = mixed_precision or "fp16"
    return None if mixed_precision is None else parse_precision(mixed_precision)


def asked_loaders(
    config: DataLoaderConfiguration | None, *, split_batches: bool
) -> DataLoaderConfiguration:
    """The configuration, with `split_batches` from either of its two places."""
    config = config or DataLoaderConfiguration()
    return replace(config, split_batches=True) if split_batches else config


def require_generator_only(rng_types: Sequence[object] | None) -> None:
    """Raise `SpecError` for random generators that are not synchronised by this version."""
    others = [str(getattr(t, "value", t)) for t in rng_types or ()]
    if any(name != "generator" for name in others):
        raise SpecError(
            f"rng_types={others} was given, but only the samplers' 'generator' is kept equal over "
            f"the ranks. Leave rng_types out, and use set_seed for the others."
        )
