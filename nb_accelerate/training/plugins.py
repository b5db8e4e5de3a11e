"""Plugins: small objects by which Accelerate's constructor is told more. The names are its own."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from nb_accelerate.errors import SpecError

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = [
    "AutocastKwargs",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "require_count",
]


class KwargsHandler:
    """Keyword arguments for something of torch's; a dataclass."""

    def to_dict(self) -> dict[str, Any]:
        """All fields, copied."""
        return copy.deepcopy(self.__dict__)

    def to_kwargs(self) -> dict[str, Any]:
        """The fields whose values are not the defaults."""
        default = self._default()
        names = (field.name for field in fields(self))  # type: ignore[arg-type]  # an heir's
        return {n: v for n in names if (v := getattr(self, n)) != getattr(default, n)}

    @classmethod
    def _default(cls) -> Self:
        """One that nothing was said to, the environment included."""
        return cls()


@dataclass
class AutocastKwargs(KwargsHandler):
    """What `torch.autocast` is told; `enabled` False computes as the model is."""

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class GradScalerKwargs(KwargsHandler):
    """What `torch.amp.GradScaler` is told, with mixed_precision="fp16"."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """What `init_process_group` is told, where the Accelerator joins a group.

    A group that is there already, as in each launch of this package, takes the timeout alone.

    Attributes:
        backend: "nccl", Accelerate's default, stands for the one that fits the device.
        init_method: a URL where the ranks meet; None is env://.
        timeout: how long a collective may take; None is torch's own.
    """

    backend: str | None = "nccl"
    init_method: str | None = None
    timeout: timedelta | None = None


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """How gradients are accumulated.

    Attributes:
        num_steps: micro-batches in a window.
        adjust_scheduler: kept for its name; a prepared schedule always counts updates.
        sync_with_dataloader: whether the last batch of a loader ends a window.
        sync_each_batch: average gradients over the ranks in each micro-batch: more traffic, but
            no rank keeps gradients of its own within a window.

    Raises:
        SpecError: `num_steps` counts no steps.
    """

    num_steps: int | None = None
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False

    def __post_init__(self) -> None:
        require_count("num_steps", self.num_steps)


def require_count(name: str, steps: object) -> None:
    """Raise `SpecError` unless `steps` is None or counts them."""
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise SpecError(f"{name}={steps!r}, but it counts steps: 1, 2, 3 and so on.")
