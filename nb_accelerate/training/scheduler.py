"""AcceleratedScheduler: a learning-rate schedule that moves when the weights do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from .models import itself

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim.lr_scheduler import LRScheduler

    from .accumulation import Accumulation
    from .nested import Anything
    from .optimizer import AcceleratedOptimizer

__all__ = ["AcceleratedScheduler"]


class AcceleratedScheduler:
    """The user's schedule; `step` does nothing when the optimizers did not update the weights.

    What travels of it by pickle is the schedule that was prepared.

    Args:
        scheduler: what is prepared.
        optimizers: those that it belongs to.
        accumulation: tells whether this is an update.
        steps_per_update: how far it moves at one update; Accelerate's rule is one step for each
            process, since the number of steps was computed for one process.
        follows_optimizer: False lets every `step` through, as it is.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        scheduler: LRScheduler,
        optimizers: Sequence[AcceleratedOptimizer],
        accumulation: Accumulation,
        *,
        steps_per_update: int = 1,
        follows_optimizer: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.optimizers = tuple(optimizers)
        self._accumulation = accumulation
        # A plateau is counted in evaluations, which are not more for more processes.
        self._steps_per_update = 1 if isinstance(scheduler, ReduceLROnPlateau) else steps_per_update
        self._follows_optimizer = follows_optimizer
        # OneCycleLR raises where it is asked for one step more than it has.
        self._has_end = isinstance(getattr(scheduler, "total_steps", None), int)

    def __getattr__(self, name: str) -> Anything:
        if name == "scheduler":  # not yet there: while it is being copied
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self.scheduler,)

    def step(self, *args: Anything, **kwargs: Anything) -> None:
        """Move on by one update."""
        if not self._follows_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self._accumulation.sync_gradients:
            return
        for optimizer in self.optimizers:
            if optimizer.step_was_skipped:
                return
        schedule: Any = self.scheduler
        for _ in range(self._steps_per_update):
            if self._has_end and schedule.last_epoch >= schedule.total_steps:
                return
            schedule.step(*args, **kwargs)
