"""Standing: what an Accelerator is, and how it was set up. Mostly one look each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .gradient_state import GradientState
from .states import AcceleratorState, is_initialized
from .together import Together

if TYPE_CHECKING:
    from torch import nn

    from nb_accelerate.replica import Replica

    from .binding import Binding
    from .collectives import Collectives
    from .communication import DistributedDataParallelKwargs
    from .engine import DistributedType
    from .loaders import DataLoaderConfiguration, PreparedLoader
    from .optimizer import AcceleratedOptimizer
    from .passes import Passes
    from .plugins import AutocastKwargs, GradScalerKwargs, InitProcessGroupKwargs
    from .profiling import ProfileKwargs
    from .scheduler import AcceleratedScheduler
    from .settings import Settings

__all__ = ["Standing"]


class Standing(Together):
    """Where an Accelerator stands: its place, its settings, and what it has prepared."""

    _settings: Settings
    _bound: Binding | None

    @property
    def _here(self) -> Binding:
        """What this Accelerator is in this process: bound anew where it has come to another one."""
        raise NotImplementedError

    @property
    def _replica(self) -> Replica:
        return self._here.replica

    @property
    def _collectives(self) -> Collectives:
        return self._here.collectives

    @property
    def _passes(self) -> Passes:
        return self._here.accumulation.passes

    def _reset_settings(self, **changed: object) -> None:
        self._settings = self._here.settings = replace(self._settings, **changed)  # type: ignore[arg-type]

    # ------------------------------------------------------------ its place
    @property
    def state(self) -> AcceleratorState:
        """Accelerate's view on where this Accelerator stands."""
        if self._bound is None and not is_initialized() and self._was_reset:
            return AcceleratorState.__new__(AcceleratorState)
        return AcceleratorState._of(self._here.home)  # noqa: SLF001  # its other constructor

    @property
    def _was_reset(self) -> bool:
        raise NotImplementedError

    @property
    def gradient_state(self) -> GradientState:
        """Accelerate's view on how this Accelerator accumulates gradients."""
        return GradientState._of(self._here.accumulation)  # noqa: SLF001  # its other constructor

    @property
    def device(self) -> torch.device:
        """Where this replica computes."""
        return self._here.engine.device

    @property
    def distributed_type(self) -> DistributedType:
        """Accelerate's name for how the processes compute together."""
        return self._here.stance.distributed_type

    @property
    def multi_device(self) -> bool:
        """Whether several accelerators compute together; False for several processes on a CPU."""
        return self.use_distributed and self.device.type != "cpu"

    @property
    def should_stop(self) -> bool:
        """Whether the user has asked this run to end at the next point that suits."""
        return self._replica.reporter.should_stop()

    @property
    def should_save_model(self) -> bool:
        """Whether this rank is the one of its host that writes."""
        return self.is_local_main_process

    # ------------------------------------------------------------ number formats
    @property
    def mixed_precision(self) -> str:
        """What is really computed in: "no", "fp16" or "bf16"."""
        return self._here.precision.name

    @property
    def native_amp(self) -> bool:
        """Whether forwards run under torch's autocast."""
        return self._here.precision.is_mixed

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """What scales losses in fp16; None in other precisions."""
        return self._here.scaler

    @scaler.setter
    def scaler(self, scaler: torch.amp.GradScaler | None) -> None:
        self._here.scaler = scaler

    @property
    def fp8_backend(self) -> None:
        """None: there is no fp8 here."""

    @property
    def has_fp8_handler(self) -> bool:
        """False: there is no fp8 here."""
        return False

    @property
    def delayed_fp8_autocast(self) -> bool:
        """False: there is no fp8 here."""
        return False

    # ------------------------------------------------------------ loaders
    @property
    def device_placement(self) -> bool:
        """Whether `prepare` moves things to the device."""
        return self._settings.device_placement

    @device_placement.setter
    def device_placement(self, place: bool) -> None:
        self._reset_settings(device_placement=place)

    @property
    def dataloader_config(self) -> DataLoaderConfiguration:
        """How `prepare` shares out loaders."""
        return self._settings.loaders

    @dataloader_config.setter
    def dataloader_config(self, config: DataLoaderConfiguration) -> None:
        self._reset_settings(loaders=config)

    @property
    def rng_types(self) -> tuple[str, ...]:
        """The random generators that all ranks take from rank 0 when a loader's pass begins."""
        return self._settings.rng_types

    @property
    def split_batches(self) -> bool:
        """Whether a loader's batch_size is that of all processes together."""
        return self._settings.loaders.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether rank 0 reads for all; None lets the kind of dataset decide."""
        return self._settings.loaders.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether last batches are filled up."""
        return self._settings.loaders.even_batches

    @even_batches.setter
    def even_batches(self, even: bool) -> None:
        self._reset_settings(loaders=replace(self._settings.loaders, even_batches=even))

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether shuffles follow from a seed and the epoch alone."""
        return self._settings.loaders.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device without waiting for the copy."""
        return self._settings.loaders.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether loaders tell how far they are."""
        return self._settings.loaders.use_stateful_dataloader

    # ------------------------------------------------------------ windows
    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch ends its window, so that the optimizer acts."""
        return self._here.accumulation.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, sync: bool) -> None:
        self._here.accumulation.sync_gradients = sync

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches in a window: in the current one, where the loader ends before it is full.

        So it is what a loss is divided by, at each time. Setting it is for full windows.
        """
        return self._here.accumulation.current_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self._here.accumulation.num_steps = steps

    @property
    def step(self) -> int:
        """Micro-batches since the last loader has ended."""
        return self._here.accumulation.step

    @step.setter
    def step(self, step: int) -> None:
        self._here.accumulation.step = step

    @property
    def step_scheduler_with_optimizer(self) -> bool:
        """Whether a schedule moves only when its optimizer has stepped."""
        return self._settings.step_scheduler_with_optimizer

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the newest step of any optimizer met gradients that overflow fp16."""
        return any(optimizer.step_was_skipped for optimizer in self._here.prepared.optimizers)

    @property
    def flag_tensor(self) -> torch.Tensor | None:
        """1 where this rank has pulled the trigger; None elsewhere."""
        return torch.ones(1, device=self.device) if self._here.triggered else None

    # ------------------------------------------------------------ what torch is told
    @property
    def ddp_handler(self) -> DistributedDataParallelKwargs | None:
        """What DistributedDataParallel is told."""
        return self._settings.handlers.ddp

    @property
    def scaler_handler(self) -> GradScalerKwargs | None:
        """What the scaler is told."""
        return self._settings.handlers.scaler

    @property
    def init_handler(self) -> InitProcessGroupKwargs | None:
        """What `init_process_group` is told."""
        return self._settings.handlers.process_group

    @property
    def autocast_handler(self) -> AutocastKwargs | None:
        """What `torch.autocast` is told."""
        return self._settings.handlers.autocast

    @property
    def profile_handler(self) -> ProfileKwargs | None:
        """What torch's profiler is told."""
        return self._settings.handlers.profile

    # ------------------------------------------------------------ what it has prepared
    @property
    def _models(self) -> list[nn.Module]:
        return self._here.prepared.models

    @property
    def _optimizers(self) -> list[AcceleratedOptimizer]:
        return self._here.prepared.optimizers

    @property
    def _schedulers(self) -> list[AcceleratedScheduler]:
        return self._here.prepared.schedulers

    @property
    def _dataloaders(self) -> list[PreparedLoader[Any]]:
        return self._here.prepared.loaders

    # ------------------------------------------------------------ other ways to be parallel
    @property
    def deepspeed_plugin(self) -> None:
        """None: there is no DeepSpeed here."""

    @property
    def parallelism_config(self) -> None:
        """None: data parallelism alone."""

    @property
    def torch_device_mesh(self) -> None:
        """None: the ranks form no mesh."""

    @property
    def is_fsdp2(self) -> bool:
        """Whether parameters are sharded by `fully_shard`."""
        return False

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """The same."""
        return self.is_fsdp2

    @property
    def tensor_parallel_rank(self) -> int:
        """Raises: nothing but data is parallel here."""
        _only_data()

    @property
    def data_parallel_rank(self) -> int:
        """Raises: there is no mesh; the rank among all is `process_index`."""
        _only_data()

    @property
    def data_parallel_shard_rank(self) -> int:
        """Raises: nothing but data is parallel here."""
        _only_data()

    @property
    def pipeline_parallel_rank(self) -> int:
        """Raises: nothing but data is parallel here."""
        raise NotImplementedError("There is no pipeline parallelism here.")

    @property
    def context_parallel_rank(self) -> int:
        """Raises: nothing but data is parallel here."""
        raise NotImplementedError("There is no context parallelism here.")


def _only_data() -> NoReturn:
    raise RuntimeError(
        "This rank has no place in a mesh, since no parallelism_config was given: "
        "process_index is its rank among all."
    )
