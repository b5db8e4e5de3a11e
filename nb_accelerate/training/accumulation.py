"""Gradient accumulation: which micro-batch ends a window, and by what the gradients are divided."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .passes import Passes
from .plugins import GradientAccumulationPlugin
from .prepared import Prepared, by_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from types import TracebackType

    import torch
    from torch import nn

    from .passes import Pass

__all__ = ["Accumulation", "Window"]


@dataclass(slots=True, eq=False)
class Window:
    """The micro-batches that these models have seen since their last update.

    Attributes:
        tokens: what they weigh on this rank; None when each weighs the same.
        divided_by: what their losses were divided by, where they are weighed.
    """

    models: tuple[nn.Module, ...]
    num_steps: int
    count: int = 0
    tokens: float | None = None
    divided_by: float = 1.0


class Accumulation:
    """The accumulation state of one Accelerator.

    A window ends after `num_steps` micro-batches, or with the last batch of the loader. Each loss
    is divided by `num_steps`; when a window turns out shorter, the gradients that are there are
    scaled up once, before its last backward, so that they always are the mean over the
    micro-batches that were really accumulated.

    Where micro-batches are weighed, their losses are sums over that many tokens. What all ranks
    have weighed together is known when the window ends, and before its last backward gradients and
    loss are scaled by it: so they are the mean over all tokens of all micro-batches of all ranks.

    Attributes:
        num_steps: micro-batches in a full window.
        sync_gradients: whether the current micro-batch ends its window; True outside of windows.
        passes: the loaders' passes that are under way.
        sync_with_dataloader: whether the last batch of a loader ends a window.
        sync_each_batch: whether the ranks average gradients within a window, too.
        adjust_scheduler: kept for its name; a prepared schedule always counts updates.
    """

    def __init__(
        self,
        rule: GradientAccumulationPlugin | None = None,
        prepared: Prepared | None = None,
        total: Callable[[float], tuple[float, int]] | None = None,
    ) -> None:
        self.follow(rule or GradientAccumulationPlugin())
        self.sync_gradients = True
        self.passes = Passes(on_idle=self._no_loader_runs)
        self._prepared = prepared or Prepared()
        self._total = total or _alone
        self._windows: dict[tuple[int, ...], Window] = {}
        self._divisor: float | None = None
        self._ended: tuple[Pass | None, int] | None = None
        self._step = 0
        self._resumed_at = 0

    def follow(self, rule: GradientAccumulationPlugin) -> None:
        """Accumulate by `rule` from the next window on."""
        self.num_steps = rule.num_steps or 1
        self.sync_with_dataloader = rule.sync_with_dataloader
        self.sync_each_batch = rule.sync_each_batch
        self.adjust_scheduler = rule.adjust_scheduler

    def rule(self) -> GradientAccumulationPlugin:
        """How it accumulates now."""
        return GradientAccumulationPlugin(
            self.num_steps, self.adjust_scheduler, self.sync_with_dataloader, self.sync_each_batch
        )

    @property
    def step(self) -> int:
        """Micro-batches since the last loader has ended, for checkpoints."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._windows.clear()
        self._step, self._resumed_at = step, step % self.num_steps

    @property
    def windows(self) -> list[Window]:
        """Those that have been begun, one for each set of models."""
        return list(self._windows.values())

    def reopen(self, windows: Iterable[Window]) -> None:
        """Go on in these, which a checkpoint has kept: they tell more than its `step`."""
        self._resumed_at = 0
        self._windows = {tuple(map(id, window.models)): window for window in windows}

    @property
    def current_steps(self) -> int:
        """Micro-batches in the current window: fewer than `num_steps` where a loader ends in it.

        A loss that is divided by this by hand has the share that `scaled` would give it.
        """
        at_end = self.sync_with_dataloader and self.passes.at_end
        if not at_end or not self._windows:
            return self.num_steps
        if self._ended is not None and self._ended[0] is self.passes.current:
            return self._ended[1]
        counts = {window.count for window in self._windows.values()}
        return min(self.num_steps, counts.pop() + 1) if len(counts) == 1 else self.num_steps

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss's share of its window."""
        divisor = self._divisor or self.num_steps
        return loss / divisor if divisor != 1 else loss

    def gradients_dropped(self) -> None:
        """`zero_grad` has acted. Between loops, a window that a `break` left open ends with it."""
        if self._divisor is None and self.passes.current is None:
            for window in self._windows.values():
                window.count, window.tokens = 0, None

    def clear(self) -> None:
        """Forget all windows."""
        self._windows.clear()
        self._step = self._resumed_at = 0
        self.sync_gradients = True

    def micro_batch(
        self,
        models: tuple[nn.Module, ...],
        no_sync: Callable[[nn.Module], AbstractContextManager[None]],
        tokens: float | torch.Tensor | None = None,
    ) -> AbstractContextManager[None]:
        """One micro-batch of the window of `models`; without models, of all prepared ones."""
        if tokens is not None:
            return MicroBatch(self, models, no_sync, float(tokens))
        if self.num_steps == 1 and not self._windows:
            return WholeWindow(self.count_alone)  # not kept: it would be a circle
        return MicroBatch(self, models, no_sync)

    def count_alone(self) -> None:
        """Count in a micro-batch that is a window of its own: nothing is left from it."""
        self._step = 0 if self.sync_with_dataloader and self.passes.at_end else self._step + 1
        self.sync_gradients = True

    def begin(self, models: tuple[nn.Module, ...], tokens: float | None) -> float | None:
        """Count a micro-batch in. Returns what `end` is to be told."""
        outer, at_end = self._divisor, self.sync_with_dataloader and self.passes.at_end
        self._step = 0 if at_end else self._step + 1
        window = self._windows.get(key := tuple(map(id, models)))
        if window is None:
            window = self._windows[key] = Window(models, self.num_steps, self._resumed_at)
        if window.count == 0:
            window.num_steps = self.num_steps
        window.count += 1
        self.sync_gradients = window.count >= window.num_steps or at_end
        if tokens is None and window.tokens is None:
            self._divisor = self._shared_equally(window)
        else:
            self._divisor = self._shared_by_tokens(window, tokens or 0.0)
        if self.sync_gradients:
            self._ended = (self.passes.current, window.count) if at_end else None
            window.count, window.tokens = 0, None
        return outer

    def end(self, outer: float | None) -> None:
        """The micro-batch is through."""
        self._divisor = outer

    def unsynced(self, models: tuple[nn.Module, ...]) -> tuple[nn.Module, ...] | list[nn.Module]:
        """The models whose gradients stay local to the rank in this micro-batch."""
        return () if self.sync_each_batch else models or self._prepared.models

    def _shared_equally(self, window: Window) -> float:
        if not self.sync_gradients or window.count >= window.num_steps:
            return window.num_steps
        self._scale(window, window.num_steps / window.count)
        return window.count

    def _shared_by_tokens(self, window: Window, tokens: float) -> float:
        if window.tokens is None:
            # A first guess, so that sums over many tokens stay within the range of 16 bits. What
            # the ranks average on the way must have been divided by the same on all of them.
            guess = 1.0 if self.sync_each_batch else max(tokens, 1.0) * window.num_steps
            window.tokens, window.divided_by = 0.0, guess
        window.tokens += tokens
        if not self.sync_gradients:
            return window.divided_by
        total, ranks = self._total(window.tokens)
        exact = max(total, 1.0) / ranks  # the ranks' gradients are averaged, not added
        self._scale(window, window.divided_by / exact)
        return exact

    def _scale(self, window: Window, factor: float) -> None:
        """Scale what earlier micro-batches of the window have left."""
        for parameter in self._parameters_of(window) if window.count > 1 else ():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

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


def _alone(tokens: float) -> tuple[float, int]:
    return tokens, 1


class WholeWindow:
    """A micro-batch that is a window of its own, as all are without accumulation."""

    __slots__ = ("_count",)

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._count()

    def __exit__(self, *_: object) -> None:
        pass


class MicroBatch:
    """One micro-batch of the window of `models`; without models, of all prepared ones."""

    __slots__ = ("_accumulation", "_models", "_no_sync", "_outer", "_stack", "_tokens")

    def __init__(
        self,
        accumulation: Accumulation,
        models: tuple[nn.Module, ...],
        no_sync: Callable[[nn.Module], AbstractContextManager[None]],
        tokens: float | None = None,
    ) -> None:
        self._accumulation, self._models, self._tokens = accumulation, models, tokens
        self._no_sync = no_sync
        self._stack: ExitStack | None = None

    def __enter__(self) -> None:
        accumulation = self._accumulation
        self._outer = accumulation.begin(self._models, self._tokens)
        if not accumulation.sync_gradients and (unsynced := accumulation.unsynced(self._models)):
            self._stack = ExitStack()
            for model in unsynced:
                self._stack.enter_context(self._no_sync(model))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._accumulation.end(self._outer)
        if self._stack is not None:
            self._stack.__exit__(kind, error, trace)
            self._stack = None
