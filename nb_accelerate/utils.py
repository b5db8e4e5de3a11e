"""What people import from `accelerate.utils`: `from nb_accelerate.utils import set_seed`.

Every name that Accelerate's own module has can be imported from here too; the list below are those
that are in use. Each comes from its room when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nb_accelerate.compat.configs import write_basic_config
    from nb_accelerate.compat.environment import (
        clear_environment,
        parse_choice_from_env,
        parse_flag_from_env,
        patch_environment,
        purge_accelerate_environment,
        str_to_bool,
    )
    from nb_accelerate.compat.modules import is_compiled_module, is_peft_model
    from nb_accelerate.compat.other import (
        convert_bytes,
        extract_model_from_parallel,
        get_free_port,
        is_port_in_use,
        merge_dicts,
        save,
        wait_for_everyone,
    )
    from nb_accelerate.compat.probes import is_bf16_available, is_cuda_available, is_mps_available
    from nb_accelerate.compat.versions import compare_versions, is_torch_version
    from nb_accelerate.training.bars import tqdm
    from nb_accelerate.training.checkpoint.project import ProjectConfiguration
    from nb_accelerate.training.checkpoint.reading import load
    from nb_accelerate.training.communication import (
        DDPCommunicationHookType,
        DistributedDataParallelKwargs,
    )
    from nb_accelerate.training.compiling import DynamoBackend, TorchDynamoPlugin
    from nb_accelerate.training.engine import DistributedType
    from nb_accelerate.training.loaders import DataLoaderConfiguration
    from nb_accelerate.training.memory import (
        clear_device_cache,
        find_executable_batch_size,
        release_memory,
    )
    from nb_accelerate.training.operations import (
        broadcast,
        broadcast_object_list,
        gather,
        gather_object,
        pad_across_processes,
        reduce,
    )
    from nb_accelerate.training.plugins import (
        AutocastKwargs,
        GradientAccumulationPlugin,
        GradScalerKwargs,
        InitProcessGroupKwargs,
        KwargsHandler,
    )
    from nb_accelerate.training.profiling import ProfileKwargs
    from nb_accelerate.training.seeding import (
        set_seed,
        synchronize_rng_state,
        synchronize_rng_states,
    )
    from nb_accelerate.training.structures import (
        concatenate,
        convert_to_fp32,
        find_batch_size,
        honor_type,
        is_torch_tensor,
        listify,
        recursively_apply,
        send_to_device,
        slice_tensors,
    )
    from nb_accelerate.training.trackers import LoggerType

__all__ = [
    "AutocastKwargs",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "DynamoBackend",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "LoggerType",
    "ProfileKwargs",
    "ProjectConfiguration",
    "TorchDynamoPlugin",
    "broadcast",
    "broadcast_object_list",
    "clear_device_cache",
    "clear_environment",
    "compare_versions",
    "concatenate",
    "convert_bytes",
    "convert_to_fp32",
    "extract_model_from_parallel",
    "find_batch_size",
    "find_executable_batch_size",
    "gather",
    "gather_object",
    "get_free_port",
    "honor_type",
    "is_bf16_available",
    "is_compiled_module",
    "is_cuda_available",
    "is_mps_available",
    "is_peft_model",
    "is_port_in_use",
    "is_torch_tensor",
    "is_torch_version",
    "listify",
    "load",
    "merge_dicts",
    "pad_across_processes",
    "parse_choice_from_env",
    "parse_flag_from_env",
    "patch_environment",
    "purge_accelerate_environment",
    "recursively_apply",
    "reduce",
    "release_memory",
    "save",
    "send_to_device",
    "set_seed",
    "slice_tensors",
    "str_to_bool",
    "synchronize_rng_state",
    "synchronize_rng_states",
    "tqdm",
    "wait_for_everyone",
    "write_basic_config",
]


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("nb_accelerate.compat.utils"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
