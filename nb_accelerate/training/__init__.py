"""Training: what runs on a replica, written with torch."""

from __future__ import annotations

from .accelerator import Accelerator
from .engine import DistributedType, Engine, engine_for
from .loaders import DataLoaderConfiguration, PreparedLoader
from .models import PreparedModel
from .optimizer import AcceleratedOptimizer
from .samplers import BatchSamplerShard, IterableDatasetShard, SeedableRandomSampler
from .scheduler import AcceleratedScheduler
from .seeding import set_seed

__all__ = [
    "AcceleratedOptimizer",
    "AcceleratedScheduler",
    "Accelerator",
    "BatchSamplerShard",
    "DataLoaderConfiguration",
    "DistributedType",
    "Engine",
    "IterableDatasetShard",
    "PreparedLoader",
    "PreparedModel",
    "SeedableRandomSampler",
    "engine_for",
    "set_seed",
]
