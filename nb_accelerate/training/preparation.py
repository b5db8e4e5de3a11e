"""Preparation: how models, loaders, optimizers and schedules become fit for a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from nb_accelerate.errors import SpecError

from .compiling import compiled
from .data_loaders import prepare_loader
from .device_maps import is_spread, require_trainable_map
from .loaders import PreparedLoader
from .models import unwrap_model
from .optimizer import AcceleratedOptimizer, require_unscalable
from .precision import with_mixed_forward
from .scheduler import AcceleratedScheduler
from .sharing import Sharding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .binding import Binding

__all__ = ["Preparation"]

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


class Preparation:
    """Prepares for one binding. What it has prepared already, it gives back as it is."""

    def __init__(self, binding: Binding) -> None:
        self._here = binding

    def all_of(
        self, objects: tuple[object, ...], places: Sequence[bool | None] | None
    ) -> list[object]:
        """Prepare what can be prepared, in order.

        Raises:
            SpecError: nothing to prepare, or not as many places as objects.
        """
        places = [None] * len(objects) if places is None else places
        if not objects or len(places) != len(objects):
            raise SpecError(
                f"prepare needs one object or more, and as many entries of device_placement, "
                f"but it got {len(objects)} and {len(places)}."
            )
        ready = [self._one(*pair) for pair in zip(objects, places, strict=True)]
        # Schedules come second: they belong to optimizers of the same call.
        schedules = (LRScheduler, AcceleratedScheduler)
        return [self.scheduler(one) if isinstance(one, schedules) else one for one in ready]

    def _one(self, one: object, place: bool | None) -> object:  # noqa: FBT001
        if isinstance(one, DataLoader):
            return self.loader(one, place=place)
        if isinstance(one, nn.Module):
            return self.model(one, place=place)
        if isinstance(one, Optimizer):
            return self.optimizer(one, place=place)
        return one

    def model(self, model: M, *, place: bool | None, evaluation_mode: bool = False) -> M:
        """The model on its device, in its precision, its gradients averaged over the ranks."""
        if (known := self._here.prepared.model_of(model)) is not None:
            return cast("M", known)
        self._here.engine.require_precision(self._here.precision.name)
        require_trainable_map(model, self._here.engine)
        with_mixed_forward(unwrap_model(model), self._here.precision)
        if self._moves(place) and not is_spread(model):
            model.to(self._here.engine.device)
        adopted: nn.Module = model
        if not evaluation_mode:
            adopted = self._here.engine.adopt_model(model, self._here.settings.handlers.ddp)
        adopted = compiled(adopted, self._here.settings.compilation)
        adopted.__dict__["_is_accelerate_prepared"] = True
        self._here.prepared.models.append(adopted)
        return cast("M", adopted)

    def loader(
        self,
        loader: DataLoader[T],
        *,
        place: bool | None,
        slice_fn: Callable[..., Any] | None = None,
    ) -> PreparedLoader[T]:
        """This rank's share of the loader, its batches on the device."""
        if (known := self._here.prepared.loader_of(loader)) is not None:
            return cast("PreparedLoader[T]", known)
        if isinstance(loader, PreparedLoader):  # by another Accelerator
            loader = loader.unprepared
        settings, passes = self._here.settings, self._here.accumulation.passes
        sharding = Sharding(
            settings.loaders, self._here.collectives, None, settings.rng_types, slice_fn
        )
        device = self._here.engine.device if self._moves(place) else None
        shared = prepare_loader(loader, sharding, lambda: passes, device)
        self._here.prepared.loaders.append(cast("PreparedLoader[object]", shared))
        return shared

    def optimizer(self, optimizer: Optimizer, *, place: bool | None) -> AcceleratedOptimizer:
        """The optimizer, acting only when a window of gradients is complete."""
        if (known := self._here.prepared.optimizer_of(optimizer)) is not None:
            return known
        if isinstance(optimizer, AcceleratedOptimizer):  # by another Accelerator
            optimizer = optimizer.optimizer
        if self._here.scaler is not None:
            require_unscalable(optimizer, self._here.prepared.name_of)
        if optimizer.state and self._moves(place):
            optimizer.load_state_dict(optimizer.state_dict())  # moves it to the parameters' device
        wrapped = AcceleratedOptimizer(
            optimizer, self._here.engine, self._here.accumulation, self._here.scaler
        )
        self._here.prepared.optimizers.append(wrapped)
        return wrapped

    def scheduler(self, scheduler: LRScheduler | AcceleratedScheduler) -> AcceleratedScheduler:
        """The schedule, moving only when its optimizer updates the weights."""
        if (known := self._here.prepared.scheduler_of(scheduler)) is not None:
            return known
        if isinstance(scheduler, AcceleratedScheduler):  # by another Accelerator
            scheduler = scheduler.scheduler
        wrapped = AcceleratedScheduler(
            scheduler,
            self._here.prepared.optimizers_of(scheduler),
            self._here.accumulation,
            steps_per_update=self._steps_per_update(),
            follows_optimizer=self._here.settings.step_scheduler_with_optimizer,
        )
        self._here.prepared.schedulers.append(wrapped)
        return wrapped

    def _moves(self, place: bool | None) -> bool:  # noqa: FBT001
        return self._here.settings.device_placement if place is None else place

    def _steps_per_update(self) -> int:
        chosen, ranks = self._here.settings.scheduler_steps_per_update, self._here.engine.world_size
        if chosen is not None or self._here.settings.loaders.split_batches or ranks == 1:
            return chosen or 1
        self._here.say_once(
            f"The learning-rate schedule moves {ranks} steps at each update, one for each process, "
            f"as Accelerate's does. Accelerator(scheduler_steps_per_update=1) makes it one."
        )
        return ranks
