"""Accelerator: the object that training code talks to. A facade: behaviour is in its neighbours."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

from torch import nn

from nb_accelerate.replica import current_replica

from . import models
from .binding import Binding, bind
from .clipping import clip_norm, clip_value
from .preparation import Preparation
from .progress import Tracked
from .settings import (
    Settings,
    asked_loaders,
    asked_precision,
    refuse_unsupported,
    require_generator_only,
)
from .together import Together

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader

    from nb_accelerate.replica import Replica

    from .collectives import Collectives
    from .engine import DistributedType
    from .loaders import DataLoaderConfiguration, PreparedLoader
    from .nested import Anything
    from .optimizer import AcceleratedOptimizer
    from .passes import Passes
    from .scheduler import AcceleratedScheduler

__all__ = ["Accelerator"]

T = TypeVar("T")
S = TypeVar("S")
Ts = TypeVarTuple("Ts")
M = TypeVar("M", bound=nn.Module)


class Accelerator(Together):
    """Runs one training function on whatever it was launched on.

    It stands on the replica that is current when it is made. Only its settings travel: in another
    process, where it was unpickled or forked to, it stands on the replica that is current when it
    is first used there, with nothing prepared. So an Accelerator made in a cell and captured by a
    training function is the worker's own.

    The arguments have Accelerate's names, order and meaning. Those that this version does not
    support are refused when they are given. Beyond Accelerate's:

    Args:
        split_batches: honoured (Accelerate ignores it here).
        fp16, logging_dir: removed from Accelerate long ago, but still written.
        scheduler_steps_per_update: how far a prepared schedule moves when the weights are updated;
            1 suits a schedule whose steps were counted in updates. None is Accelerate's rule: one
            step for each process, unless `split_batches`.
        replica: whom to be; None is the current one.

    Raises:
        SpecError: an argument that cannot be, or that is not supported yet.
    """

    def __init__(  # noqa: PLR0913  # the signature is Accelerate's
        self,
        device_placement: bool = True,  # noqa: FBT001, FBT002
        split_batches: bool = False,  # noqa: FBT001, FBT002
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int | None = None,
        cpu: bool = False,  # noqa: FBT001, FBT002
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: object = None,
        fsdp_plugin: object = None,
        torch_tp_plugin: object = None,
        megatron_lm_plugin: object = None,
        rng_types: Sequence[object] | None = None,
        log_with: object = None,
        project_dir: object = None,
        project_config: object = None,
        gradient_accumulation_plugin: object = None,
        step_scheduler_with_optimizer: bool = True,  # noqa: FBT001, FBT002
        kwargs_handlers: object = None,
        dynamo_backend: object = None,
        dynamo_plugin: object = None,
        deepspeed_plugins: object = None,
        parallelism_config: object = None,
        *,
        scheduler_steps_per_update: int | None = None,
        fp16: bool | None = None,
        logging_dir: object = None,
        replica: Replica | None = None,
    ) -> None:
        refuse_unsupported(
            deepspeed_plugin=deepspeed_plugin, fsdp_plugin=fsdp_plugin,
            torch_tp_plugin=torch_tp_plugin, megatron_lm_plugin=megatron_lm_plugin,
            log_with=log_with, project_dir=project_dir, project_config=project_config,
            gradient_accumulation_plugin=gradient_accumulation_plugin,
            kwargs_handlers=kwargs_handlers or None, dynamo_backend=dynamo_backend,
            dynamo_plugin=dynamo_plugin, deepspeed_plugins=deepspeed_plugins,
            parallelism_config=parallelism_config, logging_dir=logging_dir,
        )  # fmt: skip
        require_generator_only(rng_types)
        settings = Settings(
            device_placement=device_placement,
            mixed_precision=asked_precision(mixed_precision, fp16),
            gradient_accumulation_steps=gradient_accumulation_steps,
            cpu=cpu,
            loaders=asked_loaders(dataloader_config, split_batches=split_batches),
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            scheduler_steps_per_update=scheduler_steps_per_update,
        )
        self._settings = settings
        self._bound: Binding | None = bind(settings, replica or current_replica())

    @property
    def _here(self) -> Binding:
        """What this Accelerator is in this process: bound anew where it has come to another one."""
        if self._bound is None or not self._bound.is_of_this_process:
            self._bound = bind(self._settings, current_replica())
        return self._bound

    @property
    def _replica(self) -> Replica:
        return self._here.replica

    @property
    def _collectives(self) -> Collectives:
        return self._here.collectives

    @property
    def _passes(self) -> Passes:
        return self._here.accumulation.passes

    @property
    def _preparation(self) -> Preparation:
        return Preparation(self._here)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unbound, (self._settings,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Accelerator:
        return self  # as Accelerate: configurations that hold it are copied, a run is not

    def __repr__(self) -> str:
        place = f"rank {self.process_index} of {self.num_processes} on {str(self.device)!r}"
        return f"<Accelerator: {place}, mixed_precision={self.mixed_precision!r}>"

    # ------------------------------------------------------------ what it is
    @property
    def device(self) -> torch.device:
        """Where this replica computes."""
        return self._here.engine.device

    @property
    def distributed_type(self) -> DistributedType:
        """Accelerate's name for how the processes compute together."""
        return self._here.engine.distributed_type

    @property
    def mixed_precision(self) -> str:
        """What is really computed in: "no", "fp16" or "bf16"."""
        return self._here.precision.name

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """What scales losses in fp16; None in other precisions."""
        return self._here.scaler

    @property
    def device_placement(self) -> bool:
        """Whether `prepare` moves things to the device."""
        return self._settings.device_placement

    @property
    def dataloader_config(self) -> DataLoaderConfiguration:
        """How `prepare` shares out loaders."""
        return self._settings.loaders

    @property
    def split_batches(self) -> bool:
        """Whether a loader's batch_size is that of all processes together."""
        return self._settings.loaders.split_batches

    @property
    def even_batches(self) -> bool:
        """Whether last batches are filled up."""
        return self._settings.loaders.even_batches

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch ends its window, so that the optimizer acts."""
        return self._here.accumulation.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, sync: bool) -> None:
        self._here.accumulation.sync_gradients = sync

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches in a full window."""
        return self._here.accumulation.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self._here.accumulation.num_steps = steps

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the newest step of any optimizer met gradients that overflow fp16."""
        return any(optimizer.step_was_skipped for optimizer in self._here.prepared.optimizers)

    @property
    def should_stop(self) -> bool:
        """Whether the user has asked this run to end at the next point that suits."""
        return self._replica.reporter.should_stop()

    # ------------------------------------------------------------ prepare
    @overload
    def prepare(self, one: T, /, *, device_placement: Sequence[bool | None] | None = None) -> T: ...
    @overload
    def prepare(
        self, one: T, two: S, /, *rest: *Ts, device_placement: Sequence[bool | None] | None = None
    ) -> tuple[T, S, *Ts]: ...
    def prepare(
        self, *objects: object, device_placement: Sequence[bool | None] | None = None
    ) -> object:
        """Make models, optimizers, loaders and schedules fit for this replica.

        They come back in order, one alone as itself; what is prepared already, and what is none of
        these, comes back as it is. Every rank must prepare the same in the same order.

        Args:
            objects: what training uses.
            device_placement: for each object whether it moves to the device; None as configured.
        """
        ready = self._preparation.all_of(objects, device_placement)
        return ready[0] if len(ready) == 1 else tuple(ready)

    def prepare_model(
        self,
        model: M,
        device_placement: bool | None = None,  # noqa: FBT001
        evaluation_mode: bool = False,  # noqa: FBT001, FBT002
    ) -> M:
        """The model on its device, in its precision, its gradients averaged over the ranks.

        A frozen model, and any model with `evaluation_mode`, is not wrapped.
        """
        place = device_placement
        return self._preparation.model(model, place=place, evaluation_mode=evaluation_mode)

    def prepare_data_loader(
        self,
        data_loader: DataLoader[T],
        device_placement: bool | None = None,  # noqa: FBT001
    ) -> PreparedLoader[T]:
        """This rank's share of the loader, its batches on the device."""
        return self._preparation.loader(data_loader, place=device_placement)

    def prepare_optimizer(
        self,
        optimizer: Optimizer,
        device_placement: bool | None = None,  # noqa: FBT001
    ) -> AcceleratedOptimizer:
        """The optimizer, acting only when a window of gradients is complete."""
        return self._preparation.optimizer(optimizer, place=device_placement)

    def prepare_scheduler(self, scheduler: LRScheduler) -> AcceleratedScheduler:
        """The schedule, moving only when its optimizer updates the weights."""
        return self._preparation.scheduler(scheduler)

    # ------------------------------------------------------------ a training step
    def backward(self, loss: torch.Tensor, **kwargs: Anything) -> None:
        """Add the gradients of this micro-batch's share of its window."""
        here = self._here
        if here.replica.world_size > 1 and not here.prepared.models:
            here.warn_once(_NOTHING_AVERAGED, stacklevel=2)
        scaled = here.accumulation.scaled(loss)
        if here.scaler is not None:
            scaled = here.scaler.scale(scaled)
        scaled.backward(**kwargs)  # type: ignore[no-untyped-call]  # torch's is untyped

    def accumulate(self, *accumulated: nn.Module) -> AbstractContextManager[None]:
        """One micro-batch: the optimizer acts at the end of its window, or of the loader.

        Windows are counted for each set of models that is passed, so that two blocks in one
        iteration, one for each model, do not count twice.
        """
        return self._here.accumulation.window(accumulated, self._here.engine.no_sync)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it, `backward` leaves the model's gradients local to the rank."""
        return self._here.engine.no_sync(model)

    def autocast(self) -> AbstractContextManager[None]:
        """Within it, operations run in mixed precision, as they do in prepared models."""
        self._here.engine.require_precision(self.mixed_precision)
        return self._here.precision.autocast()

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

    def unscale_gradients(self, optimizer: AcceleratedOptimizer | None = None) -> None:
        """Bring fp16's scaled gradients to their true size, before anyone reads them."""
        for one in self._here.prepared.optimizers if optimizer is None else [optimizer]:
            one.unscale()

    # ------------------------------------------------------------ telling
    def log(
        self,
        values: Mapping[str, object],
        step: int | None = None,
        log_kwargs: Mapping[str, Any] | None = None,  # noqa: ARG002  # for trackers: none here yet
    ) -> None:
        """Tell this rank's values to whoever watches the run: numbers or one-element tensors.

        Cheap, no collective, from every rank or from some: what is shown is the mean and the band.
        """
        self._replica.reporter.metrics(values, step)

    def track(
        self, iterable: Iterable[T], description: str = "", total: int | None = None
    ) -> Tracked[T]:
        """The iterable, telling how far it is: all ranks' loops become one progress bar."""
        return Tracked(iterable, description, self._replica.reporter, total)

    # ------------------------------------------------------------ leaving
    def unwrap_model(
        self,
        model: nn.Module,
        keep_fp32_wrapper: bool = True,  # noqa: FBT001, FBT002
        keep_torch_compile: bool = True,  # noqa: FBT001, FBT002
    ) -> Anything:  # whatever the user prepared
        """The model as the user made it, without what `prepare` put around it."""
        return models.unwrap_model(
            model, keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile
        )

    def free_memory(self, *objects: object) -> list[None]:
        """Forget all that was prepared and give unused memory back.

        Returns:
            None for each object: `model, loader = accelerator.free_memory(model, loader)`.
        """
        self._here.prepared.clear()
        self._here.accumulation.clear()
        gc.collect()
        self._here.engine.empty_cache()
        return [None] * len(objects)

    clear = free_memory


_NOTHING_AVERAGED = (
    "backward was called, but this Accelerator has prepared no model, so each rank trains alone: "
    "gradients are not averaged. Call accelerator.prepare(model) within the training function, "
    "also for a model that was prepared in the kernel."
)


def _unbound(settings: Settings) -> Accelerator:
    """An Accelerator of these settings, bound when it is first used."""
    accelerator = Accelerator.__new__(Accelerator)
    accelerator._settings, accelerator._bound = settings, None  # noqa: SLF001  # its other constructor
    return accelerator
