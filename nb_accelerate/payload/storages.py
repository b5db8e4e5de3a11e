"""torch's storages as buffers: tensors that share one still share it where they arrive.

torch itself would copy each storage into the pickle. Only storages are treated here; tensors,
parameters, sparse and quantised ones, modules and loaders are pickled as torch defines it, on top.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch.optim import Optimizer

__all__ = ["loading_onto", "reduce_optimizer", "storage_reducers"]

_device: ContextVar[str | None] = ContextVar("nb_accelerate_loading_device", default=None)

WITHOUT_STORAGE = ("xla", "maia", "mtia")
"""Devices whose tensors torch pickles with their device's name, which may not exist elsewhere."""


@contextmanager
def loading_onto(device: str | None) -> Iterator[None]:
    """Within the block, tensors that come from an accelerator are rebuilt on `device`."""
    token = _device.set(device)
    try:
        yield
    finally:
        _device.reset(token)


def storage_reducers() -> dict[type, Callable[[Any], Any]]:
    """Reducers by type; none while torch is not loaded, since then nobody has a tensor."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        torch.UntypedStorage: _reduce_storage,
        torch.storage.TypedStorage: torch.multiprocessing.reductions.reduce_typed_storage,
        torch.Tensor: _reduce_tensor,
    }


def _reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    import torch

    is_elsewhere = storage.device.type != "cpu"
    local = storage.cpu() if is_elsewhere else storage  # type: ignore[no-untyped-call]
    raw: Any = torch.empty(0, dtype=torch.uint8).set_(local).numpy()
    return _rebuild_storage, (pickle.PickleBuffer(raw), is_elsewhere)


def _rebuild_storage(
    buffer: memoryview | bytearray,
    is_elsewhere: bool,  # noqa: FBT001 - called by pickle
) -> torch.UntypedStorage:
    import torch

    # torch.frombuffer takes no empty buffers.
    raw = torch.frombuffer(buffer, dtype=torch.uint8) if len(buffer) else torch.empty(0).byte()
    if is_elsewhere and _device.get() is not None:
        raw = raw.to(_device.get())
    elif not isinstance(buffer, memoryview):
        raw = raw.clone()  # small: own memory, aligned and resizable like any other storage's
    return raw.untyped_storage()


def _reduce_tensor(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - as pickle declares it
    if tensor.device.type not in WITHOUT_STORAGE:
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    return _rebuild_from_cpu, (tensor.detach().cpu(), tensor.requires_grad)


def _rebuild_from_cpu(
    tensor: torch.Tensor,
    requires_grad: bool,  # noqa: FBT001 - called by pickle
) -> torch.Tensor:
    return tensor.to(_device.get() or "cpu").requires_grad_(requires_grad)


# ---------------------------------------------------------------- optimizers
def reduce_optimizer(obj: object) -> Any:  # noqa: ANN401 - as pickle declares it
    """Keep what a scheduler has done to its optimizer's `step`; any other object: NotImplemented.

    A scheduler counts its optimizer's steps by wrapping `step` on the instance, which torch drops
    when it pickles the optimizer, and then warns that somebody has overridden it.
    """
    optim = sys.modules.get("torch.optim")
    if optim is None or not isinstance(obj, optim.Optimizer) or "step" not in vars(obj):
        return NotImplemented
    make, args, state = obj.__reduce_ex__(5)[:3]
    return make, args, state, None, None, _restore_optimizer


def _restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    optimizer.__setstate__(state)
    step = type(optimizer).step

    @wraps(step)
    def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the optimizer's own signature
        optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        return step(optimizer, *args, **kwargs)

    counted._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # noqa: SLF001
    optimizer.step = counted  # type: ignore[method-assign]
