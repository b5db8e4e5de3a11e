"""AcceleratedOptimizer: an optimizer that acts only when a window of gradients is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from nb_accelerate.errors import SpecError

from .models import itself

if TYPE_CHECKING:
    from collections.abc import Callable

    from .accumulation import Accumulation
    from .engine import Engine
    from .nested import Anything

__all__ = ["AcceleratedOptimizer", "require_unscalable"]


class AcceleratedOptimizer(Optimizer):
    """The user's optimizer; `step` and `zero_grad` do nothing between two updates.

    What travels of it by pickle is the optimizer that was prepared.

    Attributes:
        optimizer: what was prepared.
        step_was_skipped: the newest `step` found gradients that overflow fp16, and left the
            weights alone.
        unscaled: the gradients have been unscaled since the newest step.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        optimizer: Optimizer,
        engine: Engine,
        accumulation: Accumulation,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        # Optimizer's own constructor is not called: groups and state are those of `optimizer`.
        self.optimizer = optimizer
        self.step_was_skipped = False
        self.unscaled = False
        self._engine = engine
        self._accumulation = accumulation
        self._scaler = scaler
        self._has_stepped = False
        if scaler is not None:
            optimizer.register_step_post_hook(self._note_step)

    def __getattr__(self, name: str) -> Anything:
        if name == "optimizer":  # not yet there: while it is being copied
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self.optimizer,)

    @property
    def state(self) -> Anything:
        """The optimizer's own."""
        return self.optimizer.state

    @state.setter
    def state(self, state: Anything) -> None:
        self.optimizer.state = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's own."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, param_groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The optimizer's own."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    @property
    def _is_overflow(self) -> bool:
        return self.step_was_skipped  # Accelerate's name for it

    @_is_overflow.setter
    def _is_overflow(self, skipped: bool) -> None:
        self.step_was_skipped = skipped

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters, as the optimizer has it."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer has it."""
        self.optimizer.load_state_dict(state_dict)

    def train(self) -> None:
        """For optimizers that have modes, such as schedule-free ones."""
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()

    def eval(self) -> None:
        """As `train`."""
        if hasattr(self.optimizer, "eval"):
            self.optimizer.eval()

    def zero_grad(self, set_to_none: bool | None = None) -> None:  # noqa: FBT001  # upstream's
        """Drop the gradients, unless they are still being accumulated."""
        if self._accumulation.sync_gradients:
            self.optimizer.zero_grad(set_to_none is not False)
            self._accumulation.gradients_dropped()

    def step(self, closure: Callable[[], float] | None = None) -> Anything:
        """Update the weights, unless the gradients are still being accumulated."""
        if not self._accumulation.sync_gradients:
            return None
        if self._scaler is None:
            return self._engine.step(self.optimizer, closure)
        return self._scaled_step(self._scaler, closure)

    def unscale(self) -> None:
        """Bring gradients of a scaled loss to their true size; once for each step."""
        if self._scaler is not None and not self.unscaled:
            self._scaler.unscale_(self.optimizer)
            self.unscaled = True

    def _scaled_step(
        self, scaler: torch.amp.GradScaler, closure: Callable[[], float] | None
    ) -> Anything:
        if closure is not None:
            raise SpecError(
                "optimizer.step(closure) does not work with mixed_precision='fp16': the loss is "
                "scaled outside of the closure. Use 'bf16', or call step() without a closure."
            )
        self._has_stepped = False
        result = scaler.step(self.optimizer)
        scaler.update()
        self.step_was_skipped = not self._has_stepped
        self.unscaled = False
        return result

    def _note_step(self, *_: object) -> None:
        self._has_stepped = True


def require_unscalable(optimizer: Optimizer, name_of: Callable[[torch.Tensor], str]) -> None:
    """Raise `SpecError` for weights in float16: their gradients cannot be unscaled."""
    trained = (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
    halves = [name_of(p) for p in trained if p.dtype is torch.float16]
    if halves:
        raise SpecError(
            f"mixed_precision='fp16' trains weights that are kept in float32, but these are in "
            f"float16: {', '.join(halves[:5])}{', ...' if len(halves) > 5 else ''}. "
            f"Load the model in float32, or make those that are trained so: parameter.float()."
        )
