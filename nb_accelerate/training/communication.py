"""Communication: how DistributedDataParallel is made, and how its gradients travel."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from nb_accelerate.errors import SpecError

from .plugins import KwargsHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.parallel import DistributedDataParallel

__all__ = ["DDPCommunicationHookType", "DistributedDataParallelKwargs", "hook_of"]


class DDPCommunicationHookType(Enum):
    """How gradients are made smaller on their way; the names are Accelerate's."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"

    def __str__(self) -> str:
        return str(self.value)


_HOOKS: dict[DDPCommunicationHookType, Callable[..., Any]] = {
    DDPCommunicationHookType.FP16: default_hooks.fp16_compress_hook,
    DDPCommunicationHookType.BF16: default_hooks.bf16_compress_hook,
    DDPCommunicationHookType.POWER_SGD: powerSGD_hook.powerSGD_hook,
    DDPCommunicationHookType.BATCHED_POWER_SGD: powerSGD_hook.batched_powerSGD_hook,
}
_WRAPPERS: dict[DDPCommunicationHookType, Callable[..., Any]] = {
    DDPCommunicationHookType.FP16: default_hooks.fp16_compress_wrapper,
    DDPCommunicationHookType.BF16: default_hooks.bf16_compress_wrapper,
}
_NOT_OF_DDP = ("comm_hook", "comm_wrapper", "comm_state_option")


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """What DistributedDataParallel is told, by torch's names.

    Without one, gradients are views into what travels, which saves their memory once more.

    Attributes:
        comm_hook: how gradients travel; a member of `DDPCommunicationHookType` or its value.
        comm_wrapper: a second compression around it: "fp16" or "bf16".
        comm_state_option: what `PowerSGDState` is told.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_wrapper: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def to_dict(self, ignore_keys: tuple[str, ...] = _NOT_OF_DDP) -> dict[str, Any]:
        """The fields, copied, but for those that DistributedDataParallel does not know."""
        return {k: v for k, v in super().to_dict().items() if k not in ignore_keys}

    def constructor_arguments(self) -> dict[str, Any]:
        """What to give to torch: what was changed, so that its own defaults hold for the rest."""
        changed = self.to_kwargs()
        return {name: value for name, value in changed.items() if name not in _NOT_OF_DDP}

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        """Let the gradients of `model` travel as asked."""
        hook = hook_of(self)
        if hook is None:
            return
        chosen = DDPCommunicationHookType(self.comm_hook)
        state: Any = None
        if "POWER_SGD" in chosen.name:
            state = powerSGD_hook.PowerSGDState(None, **self.comm_state_option)
        model.register_comm_hook(state, _unnamed(hook) if model.device.type == "cpu" else hook)


def hook_of(asked: DistributedDataParallelKwargs) -> Callable[..., Any] | None:
    """The hook that was asked for, in its wrapper; None where gradients travel as they are.

    Raises:
        SpecError: there is none of that name.
    """
    hook, wrapper = _chosen(asked.comm_hook, "comm_hook"), _chosen(asked.comm_wrapper, "wrapper")
    if wrapper is not DDPCommunicationHookType.NO and wrapper not in _WRAPPERS:
        raise SpecError(f"comm_wrapper={str(wrapper)!r}, but only 'fp16' and 'bf16' wrap.")
    if hook is DDPCommunicationHookType.NO:
        return None
    return _WRAPPERS[wrapper](_HOOKS[hook]) if wrapper in _WRAPPERS else _HOOKS[hook]


def _unnamed(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The same hook. By its name, DDP asks for NCCL where gloo does as well (bfloat16)."""

    def travel(state: object, bucket: object) -> object:
        return hook(state, bucket)

    travel.__annotations__.clear()  # DDP compares them with its own types
    return travel


def _chosen(asked: object, what: str) -> DDPCommunicationHookType:
    try:
        return DDPCommunicationHookType(asked)
    except ValueError:
        known = ", ".join(repr(str(one)) for one in DDPCommunicationHookType)
        raise SpecError(f"{what}={asked!r} is none of {known}.") from None
