"""Prepared: what one Accelerator has prepared, and the parameters that it trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from torch.nn.parallel import DistributedDataParallel

from .models import original_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch
    from torch import nn
    from torch.optim.lr_scheduler import LRScheduler

    from .loaders import PreparedLoader
    from .optimizer import AcceleratedOptimizer
    from .scheduler import AcceleratedScheduler

__all__ = ["Prepared", "by_identity"]

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Prepared:
    """Everything in the order in which it was prepared."""

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[AcceleratedOptimizer] = field(default_factory=list)
    schedulers: list[AcceleratedScheduler] = field(default_factory=list)
    loaders: list[PreparedLoader[object]] = field(default_factory=list)

    def model_of(self, raw: nn.Module) -> nn.Module | None:
        """What `raw` became; a prepared model is its own."""
        return _first(m for m in self.models if m is raw or _within(m) is raw)

    def optimizer_of(self, raw: object) -> AcceleratedOptimizer | None:
        """What `raw` became; a prepared optimizer is its own."""
        return _first(o for o in self.optimizers if raw in (o, o.optimizer))

    def scheduler_of(self, raw: object) -> AcceleratedScheduler | None:
        """What `raw` became; a prepared scheduler is its own."""
        return _first(s for s in self.schedulers if raw in (s, s.scheduler))

    def loader_of(self, raw: object) -> PreparedLoader[object] | None:
        """What `raw` became; a prepared loader is its own."""
        return _first(d for d in self.loaders if raw in (d, d.base_dataloader))

    def optimizers_of(self, scheduler: LRScheduler) -> list[AcceleratedOptimizer]:
        """Those that `scheduler` sets the rate of; all of them when it knows none of these."""
        target = scheduler.optimizer
        own = [o for o in self.optimizers if target is o or target is o.optimizer]
        return own or list(self.optimizers)

    def parameters(self) -> dict[int, torch.Tensor]:
        """All that the prepared models and optimizers hold, each once, by identity."""
        of_models = (model.parameters() for model in self.models)
        of_optimizers = (g["params"] for o in self.optimizers for g in o.param_groups)
        return by_identity(chain(*of_models, *of_optimizers))

    def name_of(self, parameter: torch.Tensor) -> str:
        """Its name in the prepared model that it belongs to."""
        names = (
            name for m in self.models for name, own in m.named_parameters() if own is parameter
        )
        return _first(names) or "a parameter of no prepared model"

    def clear(self) -> None:
        """Forget them all."""
        for objects in (self.models, self.optimizers, self.schedulers, self.loaders):
            objects.clear()


def _within(model: nn.Module) -> nn.Module | None:
    inner = original_of(model)
    return inner.module if isinstance(inner, DistributedDataParallel) else inner


def by_identity(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The tensors by `id`, each once."""
    return {id(tensor): tensor for tensor in tensors}


def _first(candidates: Iterator[T]) -> T | None:
    return next(candidates, None)
