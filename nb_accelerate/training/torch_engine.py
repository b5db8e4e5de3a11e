"""The engine of plain PyTorch. CPU, CUDA, MPS and XPU are rows of `KINDS`."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from nb_accelerate.errors import SpecError
from nb_accelerate.replica import SOLO

from .engine import DistributedType, ReduceOp
from .models import averaging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.optim import Optimizer

    from nb_accelerate.replica import Replica

    from .communication import DistributedDataParallelKwargs
    from .nested import Anything

__all__ = ["KINDS", "DeviceKind", "TorchEngine", "chosen_device"]


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What one type of device can do, and what Accelerate calls several of it."""

    name: str
    distributed_type: DistributedType
    backend: str
    """What its ranks talk through; "" where there cannot be several."""
    trains_in_fp16: bool
    trains_in_bf16: Callable[[], bool]
    """Asked late: on CUDA the answer initialises the device."""

    @property
    def takes_several(self) -> bool:
        """Whether several processes can compute on such devices together."""
        return bool(self.backend)


KINDS = {
    kind.name: kind
    for kind in (
        DeviceKind("cpu", DistributedType.MULTI_CPU, "gloo", False, lambda: True),  # noqa: FBT003
        DeviceKind(
            "cuda",
            DistributedType.MULTI_GPU,
            "cuda:nccl,cpu:gloo",
            True,  # noqa: FBT003
            torch.cuda.is_bf16_supported,
        ),
        DeviceKind("mps", DistributedType.NO, "", True, lambda: True),  # noqa: FBT003
        DeviceKind("xpu", DistributedType.MULTI_XPU, "xpu:xccl,cpu:gloo", True, lambda: True),  # noqa: FBT003
    )
}

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}

# Collective libraries reduce these and no others; the rest travels in a wider type.
_REDUCIBLE = {
    torch.uint8, torch.int8, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip


def chosen_device(replica: Replica, *, cpu: bool = False) -> torch.device:
    """The device of `replica`, "auto" resolved. Asks whether there is one, initialises none."""
    if cpu:
        return torch.device("cpu")
    if replica.device != "auto":
        return torch.device(replica.device)
    found = torch.accelerator.current_accelerator(check_available=True)
    return found if found is not None and found.type in KINDS else torch.device("cpu")


class TorchEngine:
    """One process, one device, `torch.distributed` between the ranks."""

    def __init__(self, replica: Replica, device: torch.device) -> None:
        if device.type not in KINDS:
            raise SpecError(f"Device {str(device)!r} was asked for; known are {', '.join(KINDS)}.")
        _require_group(replica)
        self.device = device
        self.rank, self.world_size = replica.rank, replica.world_size
        self._kind = KINDS[device.type]
        self._speaks_cpu = self.world_size > 1 and "cpu" in dist.get_backend_config()

    @property
    def distributed_type(self) -> DistributedType:
        """Accelerate's name for this arrangement."""
        return self._kind.distributed_type if self.world_size > 1 else DistributedType.NO

    @property
    def header_device(self) -> torch.device:
        """The CPU when the ranks can talk from there: reading the answer then waits for no GPU."""
        return torch.device("cpu") if self._speaks_cpu else self.device

    # ------------------------------------------------------------ precision
    def require_precision(self, name: str) -> None:
        """Raise `SpecError` when the device cannot train in it."""
        if name == "fp16" and not self._kind.trains_in_fp16:
            raise SpecError(
                f"mixed_precision='fp16' was asked for, but this process computes on "
                f"{str(self.device)!r}, which cannot train in fp16. Use 'bf16' or 'no'."
            )
        if name == "bf16" and not self._kind.trains_in_bf16():
            raise SpecError(
                f"mixed_precision='bf16' was asked for, but {str(self.device)!r} does not support "
                f"bfloat16. Use 'fp16' or 'no'."
            )

    def grad_scaler(self, options: Mapping[str, Any]) -> torch.amp.GradScaler:
        """A new scaler for fp16 on this device; `options` by torch's names."""
        return torch.amp.GradScaler(self.device.type, **options)

    # ------------------------------------------------------------ training
    def adopt_model(
        self, model: nn.Module, asked: DistributedDataParallelKwargs | None = None
    ) -> nn.Module:
        """DDP around it; a frozen model stays as it is and takes rank 0's weights."""
        if self.world_size == 1 or isinstance(model, DistributedDataParallel):
            return model
        if any(parameter.requires_grad for parameter in model.parameters()):
            own = None if self.device.type == "cpu" else [self.device]
            return averaging(model, own, asked)
        for tensor in (*model.parameters(), *model.buffers()):
            self.broadcast(tensor.data, 0)
        return model

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """DDP's own; nothing for a model that averages nothing."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    @contextmanager
    def sync_next_backward(self, model: nn.Module) -> Iterator[None]:
        """Within it, `backward` averages all gradients, also of forwards made under `no_sync`."""
        if not isinstance(model, DistributedDataParallel):
            yield
            return
        before = model.require_backward_grad_sync, model.require_forward_param_sync
        model.require_backward_grad_sync = model.require_forward_param_sync = True
        # What DDP's forward would have done: expect a gradient of every parameter.
        model.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            model.require_backward_grad_sync, model.require_forward_param_sync = before

    def joined(self, models: Sequence[nn.Module], *, enable: bool) -> AbstractContextManager[None]:
        """Within it, a rank that is through answers for those that are not: by torch's Join."""
        if self.world_size == 1:
            return nullcontext()
        return Join(list(models), enable=enable, throw_on_early_termination=False)  # type: ignore[arg-type]

    def step(self, optimizer: Optimizer, closure: Callable[[], float] | None) -> Anything:
        """One update of the weights."""
        return optimizer.step(closure) if closure is not None else optimizer.step()

    def empty_cache(self) -> None:
        """Give unused device memory back."""
        if self.device.type != "cpu":
            torch.accelerator.memory.empty_cache()

    # ------------------------------------------------------------ collectives
    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensor of every rank. Travels as bytes: libraries refuse int16, float8 and others."""
        mine = self._on_the_wire(tensor.detach()).contiguous()
        everyone = mine.new_empty((self.world_size, *mine.shape))
        if mine.numel():
            dist.all_gather([_bytes_of(one) for one in everyone], _bytes_of(mine))
        return list(everyone.to(tensor.device))

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> torch.Tensor:
        """A new tensor: the ranks' tensors combined element by element."""
        result = self._on_the_wire(_reducible(tensor.detach())).clone().contiguous()
        dist.all_reduce(result, _OPS[op])
        return result.to(tensor.device)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Fill `tensor` in place with rank `source`'s."""
        wire = self._on_the_wire(tensor.detach()).contiguous()
        if wire.numel():
            dist.broadcast(_bytes_of(wire), source)
        if wire.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(wire)

    def all_gather_object(self, value: object) -> list[Any]:
        """The value of every rank, pickled on the way."""
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, value)
        return everyone

    def barrier(self) -> None:
        """Return once every rank has come here."""
        if self.world_size > 1:
            own = [self.device.index or 0] if self.device.type == "cuda" else None
            dist.barrier(device_ids=own)

    def _on_the_wire(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` where the group can take it from."""
        stays = tensor.device == self.device or (tensor.device.type == "cpu" and self._speaks_cpu)
        return tensor if stays else tensor.to(self.device)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory of a contiguous tensor, as uint8."""
    return tensor.view(-1).view(torch.uint8)


def _reducible(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in _REDUCIBLE or tensor.is_complex():
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _require_group(replica: Replica) -> None:
    """Two worlds of one must never look like one world of two."""
    there = dist.get_world_size() if dist.is_initialized() else 0
    if replica is SOLO and there > 1:
        raise SpecError(
            f"This process is one of {there} in a torch.distributed group that no launch of "
            f"nb_accelerate made, so Accelerator() would train alone. Launch with "
            f"notebook_launcher, or pass replica=Replica(rank=..., world_size={there})."
        )
    if replica.world_size > 1 and there != replica.world_size:
        what = f"has a group of {there}" if there else "has no group"
        raise SpecError(
            f"Replica(rank={replica.rank}, world_size={replica.world_size}) was given, but "
            f"torch.distributed {what}. Call torch.distributed.init_process_group first."
        )
