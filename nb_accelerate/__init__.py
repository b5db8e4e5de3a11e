"""Distributed PyTorch training that never leaves the notebook.

    from nb_accelerate import Accelerator, notebook_launcher

    def train():
        accelerator = Accelerator()
        ...

    run = notebook_launcher(train, num_processes=2)
    run.value

Names are imported when they are first used: importing this package imports no torch and touches
no device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nb_accelerate.launch.processes import kill_all, ps
    from nb_accelerate.launch.run import Run
    from nb_accelerate.notebook import debug_launcher, notebook_launcher, runs
    from nb_accelerate.payload import explain
    from nb_accelerate.spec import LaunchSpec
    from nb_accelerate.training import (
        Accelerator,
        AutocastKwargs,
        DataLoaderConfiguration,
        DDPCommunicationHookType,
        DistributedDataParallelKwargs,
        DistributedType,
        GradScalerKwargs,
        InitProcessGroupKwargs,
        PartialState,
        ProfileKwargs,
        find_executable_batch_size,
        get_logger,
        skip_first_batches,
        synchronize_rng_states,
    )

__version__ = "0.1.0"

_OF_TRAINING = (
    "Accelerator",
    "AutocastKwargs",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "GradScalerKwargs",
    "InitProcessGroupKwargs",
    "PartialState",
    "ProfileKwargs",
    "find_executable_batch_size",
    "get_logger",
    "skip_first_batches",
    "synchronize_rng_states",
)

_ROOMS = dict.fromkeys(_OF_TRAINING, "nb_accelerate.training") | {
    "LaunchSpec": "nb_accelerate.spec",
    "Run": "nb_accelerate.launch.run",
    "debug_launcher": "nb_accelerate.notebook",
    "explain": "nb_accelerate.payload",
    "kill_all": "nb_accelerate.launch.processes",
    "notebook_launcher": "nb_accelerate.notebook",
    "ps": "nb_accelerate.launch.processes",
    "runs": "nb_accelerate.notebook",
}

__all__ = [  # noqa: RUF022 - the order of use
    "notebook_launcher",
    "debug_launcher",
    "Accelerator",
    "LaunchSpec",
    "Run",
    "runs",
    "ps",
    "kill_all",
    "explain",
    "errors",
    # What a training function may want beside its Accelerator, under Accelerate's names.
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DDPCommunicationHookType",
    "AutocastKwargs",
    "GradScalerKwargs",
    "InitProcessGroupKwargs",
    "ProfileKwargs",
    "PartialState",
    "DistributedType",
    "skip_first_batches",
    "synchronize_rng_states",
    "find_executable_batch_size",
    "get_logger",
]


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("nb_accelerate.errors")
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _ROOMS[name] == "nb_accelerate.notebook":
        # Before the rest of the door is imported: it has torch to import meanwhile.
        importlib.import_module("nb_accelerate.launch.ahead").warm_up_in_a_kernel()
    value = getattr(importlib.import_module(_ROOMS[name]), name)
    globals()[name] = value
    return value


def load_ipython_extension(_shell: object) -> None:
    """What `%load_ext nb_accelerate` does: have the first launch's workers start at once."""
    importlib.import_module("nb_accelerate.launch.ahead").warm_up()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
