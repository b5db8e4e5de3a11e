"""Models: the wrapper that averages gradients, and the way back to what the user made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch.nn.parallel import DataParallel, DistributedDataParallel

from .precision import without_mixed_forward

if TYPE_CHECKING:
    from torch import nn

    from .nested import Anything

__all__ = ["PreparedModel", "itself", "unwrap_model"]

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


def unwrap_model(
    model: nn.Module, *, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
) -> nn.Module:
    """The model as the user made it.

    Args:
        model: prepared or not, compiled or not.
        keep_fp32_wrapper: keep computing in mixed precision; False gives its own forward back.
        keep_torch_compile: False peels torch.compile off as well.
    """
    compiled = model if _is_compiled(model) else None
    inner = _original_of(model)
    while isinstance(inner, DistributedDataParallel | DataParallel):
        inner = inner.module
    if not keep_fp32_wrapper:
        without_mixed_forward(_original_of(inner))
    if not keep_torch_compile:
        return _original_of(inner)
    if compiled is None:
        return inner
    compiled.add_module("_orig_mod", inner)
    return compiled


def _is_compiled(model: nn.Module) -> bool:
    # Not hasattr: a PreparedModel would answer for the model within it.
    return any(name == "_orig_mod" for name, _ in model.named_children())


def _original_of(model: nn.Module) -> nn.Module:
    """What torch.compile was given; `model` itself when it was given nothing."""
    return model.get_submodule("_orig_mod") if _is_compiled(model) else model
