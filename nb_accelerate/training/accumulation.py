"""Gradient accumulation: which micro-batch ends a window, and by what the gradients are divided."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .passes import Passes
from .prepared import by_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from .prepared import Prepared

__all__ = ["Accumulation"]


@dataclass(slots=True, eq=False)
class Window:
    """The micro-batches that these models have seen since their last update."""

    models: tuple[nn.Module, ...]
    num_steps: int
    count: int = 0


class Accumulation:
    """The accumulation state of one Accelerator.

    A window ends after `num_steps` micro-batches, or with the last batch of the loader. Each loss
    is divided by `num_steps`; when a window turns out shorter, the gradients that are there are
    scaled up once, before its last backward, so that they always are the mean over the
    micro-batches that were really accumulated.

    Attributes:
        num_steps: micro-batches in a full window.
        sync_gradients: whether the current micro-batch ends its window; True outside of windows.
        passes: the loaders' passes that are under way.
    """

    def __init__(self, num_steps: int, prepared: Prepared) -> None:
        self.num_steps = num_steps
        self.sync_gradients = True
        self.passes = Passes(on_idle=self._no_loader_runs)
        self._prepared = prepared
        self._windows: dict[tuple[int, ...], Window] = {}
        self._divisor: int | None = None

    @contextmanager
    def window(
        self,
        models: tuple[nn.Module, ...],
        no_sync: Callable[[nn.Module], AbstractContextManager[None]],
    ) -> Iterator[None]:
        """One micro-batch of the window of `models`; without models, of all prepared ones."""
        outer = self._divisor
        self._count(models)
        with ExitStack() as stack:
            for model in () if self.sync_gradients else models or self._prepared.models:
                stack.enter_context(no_sync(model))
            try:
                yield
            finally:
                self._divisor = outer

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss's share of its window."""
        divisor = self._divisor or self.num_steps
        return loss / divisor if divisor != 1 else loss

    def gradients_dropped(self) -> None:
        """`zero_grad` has acted. Between loops, a window that a `break` left open ends with it."""
        if self._divisor is None and self.passes.current is None:
            for window in self._windows.values():
                window.count = 0

    def clear(self) -> None:
        """Forget all windows."""
        self._windows.clear()
        self.sync_gradients = True

    def _count(self, models: tuple[nn.Module, ...]) -> None:
        window = self._windows.setdefault(tuple(map(id, models)), Window(models, self.num_steps))
        if window.count == 0:
            window.num_steps = self.num_steps
        window.count += 1
        self._divisor = window.num_steps
        self.sync_gradients = window.count >= window.num_steps or self.passes.at_end
        if self.sync_gradients:
            self._end(window)

    def _end(self, window: Window) -> None:
        if 1 < window.count < window.num_steps:
            for parameter in self._parameters_of(window):
                if parameter.grad is not None:
                    parameter.grad.mul_(window.num_steps / window.count)
        self._divisor = min(window.count, window.num_steps)
        window.count = 0

    def _parameters_of(self, window: Window) -> list[torch.Tensor]:
        """What is trained in this window: all that no other window's models claim."""
        found = self._prepared.parameters()
        for other in self._windows.values():
            if other is not window:
                for key in by_identity(p for m in other.models for p in m.parameters()):
                    found.pop(key, None)
        found |= by_identity(p for m in window.models for p in m.parameters())
        return list(found.values())

    def _no_loader_runs(self) -> None:
        # A loop left by break within a window must not leave optimizers that refuse to step.
        self.sync_gradients = True
