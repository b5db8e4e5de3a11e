"""Models: the wrapper that averages gradients, and the way back to what the user made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch.nn.parallel import DataParallel, DistributedDataParallel

from .precision import without_mixed_forward

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from .communication import DistributedDataParallelKwargs
    from .nested import Anything

__all__ = ["PreparedModel", "averaging", "is_compiled", "itself", "original_of", "unwrap_model"]

T = TypeVar("T")


def itself(value: T) -> T:
    """`value`: what a prepared object unpickles with, see `PreparedModel`."""
    return value


class PreparedModel(DistributedDataParallel):
    """DistributedDataParallel that answers for the model within it: `model.config` works.

    What travels of it, by pickle or deepcopy, is the model that was prepared: a process group
    belongs to its process.
    """

    def __getattr__(self, name: str) -> Anything:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # not yet there: while DDP's own constructor runs
                raise
            return getattr(self.module, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self.module,)


def averaging(
    model: nn.Module,
    device_ids: list[torch.device] | None,
    asked: DistributedDataParallelKwargs | None,
) -> PreparedModel:
    """`model`, its gradients averaged over the ranks in `backward`.

    Unless asked otherwise, its gradients are views into what travels: DDP's own default keeps them
    twice.
    """
    if asked is None:
        return PreparedModel(model, device_ids=device_ids, gradient_as_bucket_view=True)
    wrapped = PreparedModel(model, device_ids=device_ids, **asked.constructor_arguments())
    asked.register_comm_hook(wrapped)
    return wrapped


def unwrap_model(
    model: nn.Module, *, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
) -> nn.Module:
    """The model as the user made it.

    Args:
        model: prepared or not, compiled or not.
        keep_fp32_wrapper: keep computing in mixed precision; False gives its own forward back.
        keep_torch_compile: False peels torch.compile off as well.
    """
    compiled = model if is_compiled(model) else None
    inner = original_of(model)
    while isinstance(inner, DistributedDataParallel | DataParallel):
        inner = inner.module
    if not keep_fp32_wrapper:
        without_mixed_forward(original_of(inner))
    if not keep_torch_compile:
        return original_of(inner)
    if compiled is None or original_of(compiled) is inner:
        return inner if compiled is None else compiled
    # A new one: `compiled` itself must go on averaging gradients.
    again: Callable[..., nn.Module] = type(compiled)
    return again(inner, compiled.dynamo_ctx)


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` made it."""
    # Not hasattr: a PreparedModel would answer for the model within it.
    return any(name == "_orig_mod" for name, _ in model.named_children())


def original_of(model: nn.Module) -> nn.Module:
    """What torch.compile was given; `model` itself when it was given nothing."""
    return model.get_submodule("_orig_mod") if is_compiled(model) else model
