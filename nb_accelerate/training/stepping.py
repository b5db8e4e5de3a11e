"""Stepping: what a training step is made of."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from nb_accelerate.errors import SpecError

from .clipping import clip_norm, clip_value
from .device_maps import verify_device_map
from .optimizer import AcceleratedOptimizer
from .profiling import ProfileKwargs, profiled
from .standing import Standing
from .uneven import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from .nested import Anything
    from .plugins import AutocastKwargs

__all__ = ["Stepping"]


class Stepping(Standing):
    """Forward, backward, and what happens between them and the update."""

    def backward(self, loss: torch.Tensor, **kwargs: Anything) -> None:
        """Add the gradients of this micro-batch's share of its window.

        Args:
            loss: the mean over the micro-batch; within `accumulate(tokens=n)`, the sum over it.
            kwargs: what torch's `backward` is told.
        """
        here = self._here
        if here.replica.world_size > 1 and not here.prepared.models:
            here.warn_once(_NOTHING_AVERAGED, stacklevel=2)
        scaled = here.accumulation.scaled(loss)
        if here.scaler is not None:
            scaled = here.scaler.scale(scaled)
        scaled.backward(**kwargs)  # type: ignore[no-untyped-call]  # torch's is untyped

    def accumulate(
        self, *accumulated: nn.Module, tokens: float | torch.Tensor | None = None
    ) -> AbstractContextManager[None]:
        """One micro-batch: the optimizer acts at the end of its window, or of the loader.

        Windows are counted for each set of models that is passed, so that two blocks in one
        iteration, one for each model, do not count twice.

        Args:
            accumulated: the models that it trains; none means all prepared ones.
            tokens: what this micro-batch weighs, such as its number of tokens that count. Then
                `backward` takes the sum of the losses over these, and the window's gradient is
                that of the mean over all tokens of all micro-batches and ranks, however unequal.
                Given in one micro-batch of a window, it must be given in all, on every rank: the
                window's end is a collective.
        """
        here = self._here
        return here.accumulation.micro_batch(accumulated, here.engine.no_sync, tokens)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it, `backward` leaves the model's gradients local to the rank."""
        return self._here.engine.no_sync(model)

    def trigger_sync_in_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it, `backward` averages gradients, also of forwards made under `no_sync`."""
        return self._here.engine.sync_next_backward(model)

    def join_uneven_inputs(
        self,
        joinables: Sequence[nn.Module],
        even_batches: bool | None = None,  # noqa: FBT001  # upstream's order
    ) -> AbstractContextManager[None]:
        """Within it, ranks may have unequal numbers of batches, on any device.

        Args:
            joinables: the prepared models.
            even_batches: what holds for the prepared loaders meanwhile; None leaves them alone.
        """
        return joined(self._here, joinables, even_batches)

    def autocast(
        self, autocast_handler: AutocastKwargs | None = None
    ) -> AbstractContextManager[None]:
        """Within it, operations run in mixed precision, as they do in prepared models."""
        here = self._here
        if here.precision.name != "no":
            here.engine.require_precision(here.precision.name)
        return here.precision.autocast(autocast_handler)

    def clip_grad_norm_(
        self,
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2,
    ) -> torch.Tensor:
        """Scale gradients down to a common norm and return the norm that they had.

        Gradients that are still being accumulated are left alone: each rank has others then.
        """
        return clip_norm(
            parameters, (max_norm, norm_type), self._here.prepared, self.sync_gradients
        )

    def clip_grad_value_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value_: float
    ) -> None:
        """Clamp each gradient's elements, unless they are still being accumulated."""
        clip_value(parameters, clip_value_, self._here.prepared, self.sync_gradients)

    def unscale_gradients(
        self, optimizer: AcceleratedOptimizer | Sequence[AcceleratedOptimizer] | None = None
    ) -> None:
        """Bring fp16's scaled gradients to their true size, before anyone reads them."""
        if isinstance(optimizer, AcceleratedOptimizer):
            optimizer = [optimizer]
        for one in self._here.prepared.optimizers if optimizer is None else optimizer:
            one.unscale()

    # ------------------------------------------------------------ together
    def set_trigger(self) -> None:
        """Raise this rank's flag, for `check_trigger` to see on all: to stop early, say."""
        self._here.triggered = True

    def check_trigger(self) -> bool:
        """Whether any rank has raised its flag; then they are lowered. Every rank must call it."""
        here = self._here
        pulled = here.collectives.any(here.triggered)
        here.triggered = here.triggered and not pulled
        return pulled

    def profile(
        self, profile_handler: ProfileKwargs | None = None
    ) -> AbstractContextManager[torch.profiler.profile]:
        """Within it, torch's profiler records; its traces are written where the handler says."""
        asked = profile_handler or self.profile_handler or ProfileKwargs()
        return profiled(asked, self._collectives)

    # ------------------------------------------------------------ refused
    def lomo_backward(self, loss: torch.Tensor, learning_rate: float) -> None:  # noqa: ARG002
        """Raises: LOMO optimizers are not supported."""
        raise SpecError("LOMO optimizers are not supported. Use any other, and backward().")

    def verify_device_map(self, model: nn.Module) -> bool:
        """Whether the layers of `model` lie on more than one device."""
        return verify_device_map(model)

    def maybe_context_parallel(
        self,
        buffers: list[torch.Tensor] | None = None,  # noqa: ARG002  # upstream's
        buffer_seq_dims: list[int] | None = None,  # noqa: ARG002
        no_restore_buffers: set[torch.Tensor] | None = None,  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """Nothing: sequences are not shared out, and each rank sees them whole."""
        return nullcontext()


_NOTHING_AVERAGED = (
    "backward was called, but this Accelerator has prepared no model, so each rank trains alone: "
    "gradients are not averaged. Call accelerator.prepare(model) within the training function, "
    "also for a model that was prepared in the kernel."
)
