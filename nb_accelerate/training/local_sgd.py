"""Local SGD: ranks train apart, and average their weights every few steps."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import torch

from nb_accelerate.errors import SpecError

from .prepared import by_identity

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn

    from .accelerator import Accelerator

__all__ = ["LocalSGD"]


class LocalSGD:
    """Within it, gradients stay local to the rank, and weights are averaged now and then.

    They are averaged after every `local_sgd_steps` calls of `step`, and at the end. Both are
    collectives. A block that raises ends without.

    Args:
        accelerator: what `model` was prepared by.
        model: what is trained.
        local_sgd_steps: updates between two averages.
        enabled: False trains as without it.

    Raises:
        SpecError: `local_sgd_steps` counts no steps.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        local_sgd_steps: int,
        enabled: bool = True,  # noqa: FBT001, FBT002  # upstream's order
    ) -> None:
        if local_sgd_steps < 1:
            raise SpecError(f"local_sgd_steps={local_sgd_steps!r}, but it counts steps: 1, 2, 3.")
        self.enabled = enabled and accelerator.use_distributed
        self.num_steps = 0
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        self._apart = ExitStack()

    def __enter__(self) -> Self:
        if self.enabled:
            self._apart.enter_context(self.accelerator.no_sync(self.model))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._apart.close()
        if self.enabled and kind is None:
            self._average()

    def step(self) -> None:
        """One update is through."""
        self.num_steps += 1
        if self.enabled and self.num_steps % self.local_sgd_steps == 0:
            self._average()

    def _average(self) -> None:
        """Bring all ranks to the mean of their weights: one collective for each number format."""
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in by_identity(self.model.parameters()).values():
            by_dtype.setdefault(parameter.dtype, []).append(parameter.detach())
        for weights in by_dtype.values():
            together = torch.cat([one.reshape(-1) for one in weights])
            mean = self.accelerator.reduce(together, "mean")
            for one, part in zip(weights, mean.split([w.numel() for w in weights]), strict=True):
                one.copy_(part.view_as(one))
