"""Accelerator: the object that training code talks to. A facade: behaviour is in its neighbours."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

from torch import nn

from nb_accelerate.replica import current_replica

from . import models
from .binding import Binding, bind, replica_for
from .checkpoint import asked_project
from .compiling import asked_compilation
from .data_loaders import skip_first_batches
from .keeping import Keeping
from .preparation import Preparation
from .rng import asked_rng_types
from .settings import (
    Settings,
    asked_accumulation,
    asked_handlers,
    asked_loaders,
    asked_precision,
    refuse_unsupported,
)
from .states import followers, is_initialized
from .stepping import Stepping
from .telling import Telling
from .trackers import filter_trackers

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader

    from nb_accelerate.replica import Replica

    from .checkpoint import ProjectConfiguration
    from .loaders import DataLoaderConfiguration, PreparedLoader
    from .nested import Anything
    from .optimizer import AcceleratedOptimizer
    from .plugins import GradientAccumulationPlugin
    from .scheduler import AcceleratedScheduler
    from .trackers import Wanted

__all__ = ["Accelerator"]

T = TypeVar("T")
S = TypeVar("S")
Ts = TypeVarTuple("Ts")
M = TypeVar("M", bound=nn.Module)


class Accelerator(Stepping, Telling, Keeping):
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
        log_with: Wanted | Sequence[Wanted] | None = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,  # noqa: FBT001, FBT002
        kwargs_handlers: Sequence[object] | None = None,
        dynamo_backend: object = None,
        dynamo_plugin: object = None,
        deepspeed_plugins: object = None,
        parallelism_config: object = None,
        *,
        scheduler_steps_per_update: int | None = None,
        fp16: bool | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        replica: Replica | None = None,
    ) -> None:
        refuse_unsupported(
            deepspeed_plugin=deepspeed_plugin, fsdp_plugin=fsdp_plugin,
            torch_tp_plugin=torch_tp_plugin, megatron_lm_plugin=megatron_lm_plugin,
            deepspeed_plugins=deepspeed_plugins,
            parallelism_config=parallelism_config,
        )  # fmt: skip
        project = asked_project(project_config, project_dir, logging_dir)
        settings = Settings(
            device_placement=device_placement,
            mixed_precision=asked_precision(mixed_precision, fp16),
            accumulation=asked_accumulation(
                gradient_accumulation_steps, gradient_accumulation_plugin
            ),
            handlers=asked_handlers(kwargs_handlers),
            compilation=asked_compilation(dynamo_backend, dynamo_plugin),
            cpu=cpu,
            loaders=asked_loaders(dataloader_config, split_batches=split_batches),
            rng_types=asked_rng_types(rng_types),
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            scheduler_steps_per_update=scheduler_steps_per_update,
            project=project,
            log_with=filter_trackers(log_with, project.logging_dir),
        )
        self._settings = settings
        self._bound: Binding | None = bind(settings, replica or replica_for(settings))
        self._resting: Binding | None = None  # where it stood when the states were reset
        followers().add(self)

    @property
    def _here(self) -> Binding:
        bound = self._bound
        return bound if bound is not None else self._stand()

    def _stand(self) -> Binding:
        """Bind anew in another process; stand again where the states were reset and made anew."""
        if self._resting is None:
            self._bound = bind(self._settings, replica_for(self._settings))
            return self._bound
        if not is_initialized():
            raise AttributeError(
                "`AcceleratorState` object has no attribute that this Accelerator could stand on. "
                "This happens if `AcceleratorState._reset_state()` was called after it was made. "
                "Make a new Accelerator."
            )
        self._bound, self._resting = self._resting, None
        return self._bound

    @property
    def _was_reset(self) -> bool:
        return self._resting is not None

    def _forked(self) -> None:
        self._bound = self._resting = None

    def _reset(self) -> None:
        if self._bound is not None and self._bound.replica.shared is current_replica().shared:
            self._resting, self._bound = self._bound, None

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
        slice_fn_for_dispatch: Callable[..., Any] | None = None,
    ) -> PreparedLoader[T]:
        """This rank's share of the loader, its batches on the device."""
        return self._preparation.loader(
            data_loader, place=device_placement, slice_fn=slice_fn_for_dispatch
        )

    def skip_first_batches(self, dataloader: DataLoader[T], num_batches: int = 0) -> DataLoader[T]:
        """The same loader, whose passes leave out their first batches: this rank's, if prepared."""
        return skip_first_batches(dataloader, num_batches)

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


def _unbound(settings: Settings) -> Accelerator:
    """An Accelerator of these settings, bound when it is first used."""
    accelerator = Accelerator.__new__(Accelerator)
    accelerator._settings = settings  # noqa: SLF001  # its other constructor
    accelerator._bound = accelerator._resting = None  # noqa: SLF001
    followers().add(accelerator)
    return accelerator
