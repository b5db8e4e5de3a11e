"""Settings: what an Accelerator was asked for, checked. They travel; what follows from them not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nb_accelerate.errors import SpecError

from .checkpoint.project import ProjectConfiguration
from .communication import DistributedDataParallelKwargs
from .compiling import TorchDynamoPlugin
from .joining import asked_accumulation_steps, asked_precision_here
from .loaders import DataLoaderConfiguration
from .plugins import (
    AutocastKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    require_count,
)
from .precision import parse_precision
from .profiling import ProfileKwargs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .trackers import Wanted

__all__ = [
    "Handlers",
    "Settings",
    "asked_accumulation",
    "asked_handlers",
    "asked_loaders",
    "asked_precision",
    "refuse_unsupported",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """Keyword arguments for things of torch's; None where there are none."""

    ddp: DistributedDataParallelKwargs | None = None
    scaler: GradScalerKwargs | None = None
    process_group: InitProcessGroupKwargs | None = None
    autocast: AutocastKwargs | None = None
    profile: ProfileKwargs | None = None


_SLOTS: dict[type[KwargsHandler], str] = {
    DistributedDataParallelKwargs: "ddp",
    GradScalerKwargs: "scaler",
    InitProcessGroupKwargs: "process_group",
    AutocastKwargs: "autocast",
    ProfileKwargs: "profile",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an Accelerator was asked for; None leaves it to the replica.

    Raises:
        SpecError: a value that cannot be.
    """

    device_placement: bool = True
    mixed_precision: str | None = None
    accumulation: GradientAccumulationPlugin = field(default_factory=GradientAccumulationPlugin)
    handlers: Handlers = field(default_factory=Handlers)
    compilation: TorchDynamoPlugin = field(default_factory=TorchDynamoPlugin)
    cpu: bool = False
    loaders: DataLoaderConfiguration = field(default_factory=DataLoaderConfiguration)
    rng_types: tuple[str, ...] = ("generator",)
    step_scheduler_with_optimizer: bool = True
    scheduler_steps_per_update: int | None = None
    project: ProjectConfiguration = field(default_factory=ProjectConfiguration)
    log_with: Sequence[Wanted] = ()

    def __post_init__(self) -> None:
        require_count("scheduler_steps_per_update", self.scheduler_steps_per_update)


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
    asked = asked_precision_here() if mixed_precision is None else mixed_precision
    return None if asked is None else parse_precision(asked)


def asked_accumulation(
    steps: int | None, plugin: GradientAccumulationPlugin | None
) -> GradientAccumulationPlugin:
    """How to accumulate, from either of the constructor's two arguments, or the environment.

    Raises:
        SpecError: both were given.
    """
    if plugin is None:
        steps = asked_accumulation_steps() or steps
        require_count("gradient_accumulation_steps", steps)
        return GradientAccumulationPlugin(num_steps=steps)
    if steps not in (None, 1):
        raise SpecError(
            f"gradient_accumulation_steps={steps} and a gradient_accumulation_plugin were given: "
            f"give one of them."
        )
    return replace(plugin)  # a copy: two Accelerators may be told the same


def asked_handlers(handlers: Iterable[object] | None) -> Handlers:
    """Each under its name.

    Raises:
        SpecError: two of a kind, or something that is none.
    """
    found: dict[str, Any] = {}
    for handler in handlers or ():
        slot = next((name for kind, name in _SLOTS.items() if isinstance(handler, kind)), None)
        known = ", ".join(kind.__name__ for kind in _SLOTS)
        if slot is None:
            raise SpecError(f"kwargs_handlers holds {handler!r}; supported are {known}.")
        if slot in found:
            raise SpecError(f"kwargs_handlers holds two {type(handler).__name__}: give one.")
        found[slot] = handler
    return Handlers(**found)


def asked_loaders(
    config: DataLoaderConfiguration | None, *, split_batches: bool
) -> DataLoaderConfiguration:
    """The configuration, with `split_batches` from either of its two places."""
    config = config or DataLoaderConfiguration()
    return replace(config, split_batches=True) if split_batches else config
