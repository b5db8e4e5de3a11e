"""Questions about a module that upstream's `utils.modeling` and `utils.other` answer."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import torch  # noqa: TID253  # loaded when one of these is asked for
from torch import nn  # noqa: TID253

from nb_accelerate.errors import SpecError
from nb_accelerate.training.models import is_compiled, unwrap_model

from .enums import CustomDtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "compute_module_sizes",
    "convert_file_size_to_int",
    "dtype_byte_size",
    "find_tied_parameters",
    "get_model_tp_size",
    "get_module_children_bottom_up",
    "has_compiled_regions",
    "has_offloaded_params",
    "id_tensor_storage",
    "is_compiled_module",
    "is_peft_model",
    "model_has_dtensor",
    "named_module_tensors",
]

_UNITS = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}

_BYTES = {CustomDtype.FP8: 1, CustomDtype.INT4: 1 / 2, CustomDtype.INT2: 1 / 4, torch.bool: 1 / 8}


# ---------------------------------------------------------------- what it is
def is_peft_model(model: nn.Module) -> bool:
    """Whether the model, unwrapped, is one of peft's."""
    peft = sys.modules.get("peft")  # without which nobody has made one
    return peft is not None and isinstance(unwrap_model(model), peft.PeftModel)


def is_compiled_module(module: nn.Module) -> bool:
    """Whether torch.compile has made it."""
    return is_compiled(module)


def has_compiled_regions(module: nn.Module) -> bool:
    """Whether torch.compile has made a part of it."""
    return any(is_compiled(part) for part in module.modules())


def model_has_dtensor(model: nn.Module) -> bool:
    """Whether a parameter is spread over several devices."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def get_model_tp_size(model: nn.Module) -> int | None:
    """Over how many ranks transformers has split the model's tensors; None if it has not."""
    size: int | None = getattr(model, "tp_size", None)
    if size is not None:
        return size
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    return config.get("tp_size") if isinstance(config, dict) else getattr(config, "tp_size", None)


def has_offloaded_params(module: nn.Module) -> bool:
    """Whether a hook brings its parameters from elsewhere when it is called."""
    hook = getattr(module, "_hf_hook", None)
    return bool(getattr(hook, "offload", False))


def get_module_children_bottom_up(
    model: nn.Module,
    return_fqns: bool = False,  # noqa: FBT001, FBT002  # upstream's
) -> list[nn.Module] | list[tuple[str, nn.Module]]:
    """All its modules, each after those within it; with their dotted names if asked."""
    named = list(_below("", model))[::-1]
    return named if return_fqns else [module for _, module in named]


def _below(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield name, module
    for child, inner in reversed(list(module.named_children())):
        yield from _below(f"{name}.{child}" if name else child, inner)


# ---------------------------------------------------------------- its tensors
def named_module_tensors(
    module: nn.Module,
    include_buffers: bool = True,  # noqa: FBT001, FBT002  # upstream's
    recurse: bool = False,  # noqa: FBT001, FBT002  # upstream's
    remove_non_persistent: bool = False,  # noqa: FBT001, FBT002  # upstream's
) -> Iterator[tuple[str, torch.Tensor]]:
    """Its parameters and buffers by name.

    Args:
        module: whose.
        include_buffers: whether buffers too.
        recurse: whether those of the modules within it too.
        remove_non_persistent: leave buffers out that are not saved.
    """
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    saved = module.state_dict(keep_vars=True) if remove_non_persistent else {}
    for name, buffer in module.named_buffers(recurse=recurse):
        if not remove_non_persistent or name in saved:
            yield name, buffer


def find_tied_parameters(model: nn.Module, **_: object) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [sorted(group) for group in names.values() if len(group) > 1]


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """(device, address, bytes) of its memory: equal for tensors that share it."""
    if tensor.is_meta:
        return tensor.device, 0, tensor.nelement() * tensor.element_size()
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr(), storage.nbytes()


# ---------------------------------------------------------------- sizes
def compute_module_sizes(
    model: nn.Module,
    dtype: str | torch.dtype | None = None,
    special_dtypes: Mapping[str, str | torch.dtype] | None = None,
    buffers_only: bool = False,  # noqa: FBT001, FBT002  # upstream's
) -> dict[str, float]:
    """Bytes of each module by its dotted name; "" is the whole model.

    Args:
        model: whose.
        dtype: count floating-point tensors as if they were of this type, where that is smaller.
        special_dtypes: types of single tensors, by name, which they are counted as.
        buffers_only: leave parameters out.
    """
    sizes: dict[str, float] = defaultdict(int)
    tensors = model.named_buffers() if buffers_only else named_module_tensors(model, recurse=True)
    for name, tensor in tensors:
        special = (special_dtypes or {}).get(name)
        each = _bytes_of(tensor, dtype) if special is None else dtype_byte_size(_dtype(special))
        parts = name.split(".")
        for length in range(len(parts) + 1):
            sizes[".".join(parts[:length])] += tensor.numel() * each
    return sizes


def _bytes_of(tensor: torch.Tensor, dtype: str | torch.dtype | None) -> float:
    own = dtype_byte_size(tensor.dtype)
    if dtype is None or not tensor.is_floating_point():
        return own
    return min(own, dtype_byte_size(_dtype(dtype)))


def _dtype(named: str | torch.dtype) -> torch.dtype:
    found = getattr(torch, named.removeprefix("torch.")) if isinstance(named, str) else named
    assert isinstance(found, torch.dtype)  # noqa: S101 - a name that torch gives to a type
    return found


def dtype_byte_size(dtype: torch.dtype | CustomDtype) -> float:
    """Bytes of one element; a bool counts as the bit that it tells."""
    if dtype in _BYTES:
        return _BYTES[dtype]
    if not isinstance(dtype, torch.dtype):
        raise SpecError(f"dtype={dtype!r} is no dtype of torch's.")
    return dtype.itemsize


def convert_file_size_to_int(size: int | str) -> int:
    """Bytes of a size such as "5GB" or "1.5MiB"; in lower-case "b" it counts bits.

    Raises:
        SpecError: it is written otherwise.
    """
    if isinstance(size, int) and size >= 0:
        return size
    written = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]I?B)\s*", str(size), re.IGNORECASE)
    if written is None:
        raise SpecError(f"size={size!r}: give a number of bytes, or a text such as '5GB'.")
    number, unit = written.groups()
    in_bytes = int(float(number) * _UNITS[unit.upper()])
    is_bits = unit.endswith("b") and "I" not in unit.upper()
    return in_bytes // 8 if is_bits else in_bytes
