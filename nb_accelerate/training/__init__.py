"""Training: what runs on a replica, written with torch."""

from __future__ import annotations

from .accelerator import Accelerator
from .checkpoint import ProjectConfiguration
from .communication import DDPCommunicationHookType, DistributedDataParallelKwargs
from .compiling import TorchDynamoPlugin
from .data_loaders import (
    DataLoaderDispatcher,
    DataLoaderShard,
    SkipDataLoader,
    prepare_data_loader,
    skip_first_batches,
)
from .engine import DistributedType, Engine, engine_for
from .gradient_state import GradientState
from .loaders import DataLoaderConfiguration, PreparedLoader
from .local_sgd import LocalSGD
from .logs import get_logger
from .memory import find_executable_batch_size
from .models import PreparedModel
from .optimizer import AcceleratedOptimizer
from .plugins import (
    AutocastKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
)
from .profiling import ProfileKwargs
from .samplers import BatchSamplerShard, SeedableRandomSampler, SkipBatchSampler
from .scheduler import AcceleratedScheduler
from .seeding import set_seed, synchronize_rng_states
from .states import AcceleratorState, PartialState
from .streams import IterableDatasetShard

__all__ = [
    "AcceleratedOptimizer",
    "AcceleratedScheduler",
    "Accelerator",
    "AcceleratorState",
    "AutocastKwargs",
    "BatchSamplerShard",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "Engine",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "GradientState",
    "InitProcessGroupKwargs",
    "IterableDatasetShard",
    "LocalSGD",
    "PartialState",
    "PreparedLoader",
    "PreparedModel",
    "ProfileKwargs",
    "ProjectConfiguration",
    "SeedableRandomSampler",
    "SkipBatchSampler",
    "SkipDataLoader",
    "TorchDynamoPlugin",
    "engine_for",
    "find_executable_batch_size",
    "get_logger",
    "prepare_data_loader",
    "set_seed",
    "skip_first_batches",
    "synchronize_rng_states",
]
