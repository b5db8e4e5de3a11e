"""Small things of upstream's `utils.other` that no room of ours needs."""

from __future__ import annotations

import functools
import logging
import platform
import re
import socket
from typing import TYPE_CHECKING, Any, TypeVar

from nb_accelerate.training.checkpoint.weights import unaliased
from nb_accelerate.training.models import unwrap_model
from nb_accelerate.training.states import PartialState

if TYPE_CHECKING:
    import os
    from collections.abc import MutableMapping
    from typing import IO

    from torch import nn

__all__ = [
    "check_os_kernel",
    "clean_state_dict_for_safetensors",
    "convert_bytes",
    "extract_model_from_parallel",
    "get_free_port",
    "get_pretty_name",
    "is_port_in_use",
    "merge_dicts",
    "recursive_getattr",
    "save",
    "wait_for_everyone",
]

M = TypeVar("M", bound="MutableMapping[str, Any]")

_OLDEST_KERNEL = (5, 5, 0)
_STATIC_PORT = 29500


# ---------------------------------------------------------------- models
def extract_model_from_parallel(
    model: nn.Module,
    keep_fp32_wrapper: bool = True,  # noqa: FBT001, FBT002  # upstream's
    keep_torch_compile: bool = True,  # noqa: FBT001, FBT002  # upstream's
    recursive: bool = False,  # noqa: FBT001, FBT002  # upstream's
) -> nn.Module:
    """The model that is within DistributedDataParallel and the like.

    Args:
        model: prepared or not.
        keep_fp32_wrapper: keep computing in mixed precision.
        keep_torch_compile: keep it compiled.
        recursive: also put every module within it in the place of what wraps it.
    """
    inner = unwrap_model(
        model, keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile
    )
    return _unwrapped_throughout(inner) if recursive else inner


def _unwrapped_throughout(model: nn.Module) -> nn.Module:
    while "module" in dict(model.named_children()):
        model = model.get_submodule("module")
    for name, child in list(model.named_children()):
        setattr(model, name, _unwrapped_throughout(child))
    return model


# ---------------------------------------------------------------- files
def save(
    obj: object,
    f: str | os.PathLike[str] | IO[bytes],
    save_on_each_node: bool = False,  # noqa: FBT001, FBT002  # upstream's
    safe_serialization: bool = False,  # noqa: FBT001, FBT002  # upstream's
) -> None:
    """Save on the main process, or on the first of each node.

    Args:
        obj: anything that torch.save takes; a state dict for safetensors.
        f: a path or, without safetensors, a binary file.
        save_on_each_node: for disks that nodes do not share.
        safe_serialization: as safetensors, each tensor once.
    """
    here = PartialState()
    if here.is_local_main_process if save_on_each_node else here.is_main_process:
        _write(obj, f, safe=safe_serialization)


def _write(obj: Any, f: Any, *, safe: bool) -> None:  # noqa: ANN401  # whatever torch.save takes
    import torch

    if not safe:
        torch.save(obj, f)
        return
    from safetensors.torch import save_file

    save_file(clean_state_dict_for_safetensors(obj), f, metadata={"format": "pt"})


def clean_state_dict_for_safetensors(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Each tensor once, under its first name, and contiguous."""
    result = unaliased(state_dict)
    if others := sorted(state_dict.keys() - result.keys()):
        _log().warning(
            "Removed shared tensors %s: each is saved once, under its first name. A model that "
            "ties them, as this one does, loads them all.", ", ".join(others),
        )  # fmt: skip
    return result


# ---------------------------------------------------------------- ports
def is_port_in_use(port: int | None = None) -> bool:
    """Whether something listens on a port of this machine; None: on torchrun's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", _STATIC_PORT if port is None else port)) == 0


def get_free_port() -> int:
    """A port of loopback that nothing listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---------------------------------------------------------------- the rest
def wait_for_everyone() -> None:
    """Wait until every rank has come here."""
    PartialState().wait_for_everyone()


def check_os_kernel() -> None:
    """Warn when Linux is so old that processes are known to hang."""
    system = platform.uname()
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", system.release)
    if system.system != "Linux" or found is None:
        return
    if tuple(int(part) for part in found.groups()) < _OLDEST_KERNEL:
        oldest = ".".join(map(str, _OLDEST_KERNEL))
        _log().warning(
            f"Linux {found.group()} runs here, and processes may hang on kernels before {oldest}. "
            "Upgrade it if they do."
        )


def convert_bytes(size: float) -> str:
    """A number of bytes in words, as "1.5 GB"; a unit is 1024 of the next smaller one."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1024:
            return f"{round(size, 2)} {unit}"
        size /= 1024
    return f"{round(size, 2)} PB"


def get_pretty_name(obj: object) -> str:
    """An object's own name, else its class's."""
    for named in (obj, type(obj)):
        name = getattr(named, "__qualname__", None) or getattr(named, "__name__", None)
        if name is not None:
            return str(name)
    return str(obj)


def merge_dicts(source: MutableMapping[str, Any], destination: M) -> M:
    """Put what `source` has into `destination`, dictionaries within dictionaries too."""
    for key, value in source.items():
        if isinstance(value, dict):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def recursive_getattr(obj: object, attr: str) -> Any:  # noqa: ANN401  # whatever is there
    """What a dotted name, as "model.config", leads to from an object."""
    return functools.reduce(getattr, attr.split("."), obj)


def _log() -> logging.Logger:
    # Under upstream's name, which programs that configure its log know.
    return logging.getLogger("accelerate.utils.other")
