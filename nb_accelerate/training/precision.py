"""Mixed precision: the forward pass in 16 bits, its outputs and the weights in 32."""

from __future__ import annotations

import copy
import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nb_accelerate.errors import SpecError

from .nested import Anything, Nested, map_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from .plugins import AutocastKwargs

__all__ = [
    "MixedForward",
    "Precision",
    "parse_precision",
    "widened",
    "with_mixed_forward",
    "without_mixed_forward",
]

_DTYPES = {"no": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def parse_precision(asked: object) -> str:
    """The name of a precision, from a name or an enum member with such a value.

    Raises:
        SpecError: there is none of that name, or it is not supported yet.
    """
    name = str(getattr(asked, "value", asked)).lower()
    if name == "fp8":
        raise SpecError("mixed_precision='fp8' is not supported yet. Use 'bf16', 'fp16' or 'no'.")
    if name not in _DTYPES:
        raise SpecError(f"mixed_precision={asked!r} is none of {', '.join(map(repr, _DTYPES))}.")
    return name


_AS_IT_IS = nullcontext()


@dataclass(frozen=True, slots=True)
class Precision:
    """In what number format a device type runs the forward pass."""

    name: str
    device_type: str
    options: AutocastKwargs | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether the forward pass runs in 16 bits."""
        return self.name != "no"

    def autocast(self, options: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Within it, operations choose their number format as this precision wants it."""
        if self.name == "no":
            return _AS_IT_IS
        told = options or self.options
        if told is None:
            return torch.autocast(self.device_type, dtype=_DTYPES[self.name])
        return torch.autocast(
            self.device_type,
            dtype=_DTYPES[self.name],
            enabled=told.enabled,
            cache_enabled=told.cache_enabled,
        )


class MixedForward:
    """A model's forward under autocast, its 16-bit outputs widened to float32.

    What travels of it by pickle is the model's own forward, since the device may be missing where
    it arrives. A deep copy keeps it, bound to the copied model.
    """

    def __init__(self, original: Callable[..., Any], precision: Precision) -> None:
        functools.update_wrapper(self, original)  # libraries read the signature of forward
        self.original = original
        self.precision = precision

    def __call__(self, *args: Anything, **kwargs: Anything) -> Anything:
        """Compute."""
        with self.precision.autocast():
            output = self.original(*args, **kwargs)
        return widened(output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _the_original, (self.original,)

    def __deepcopy__(self, memo: dict[int, Any]) -> MixedForward:
        return MixedForward(copy.deepcopy(self.original, memo), self.precision)


def _the_original(forward: Callable[..., Any]) -> Callable[..., Any]:
    return forward


def with_mixed_forward(model: nn.Module, precision: Precision) -> None:
    """Make `model` compute in `precision`, whatever it was prepared for before."""
    without_mixed_forward(model)
    if precision.is_mixed:
        original = model.forward
        model.__dict__["_original_forward"] = original
        model.__dict__["forward"] = MixedForward(original, precision)


def without_mixed_forward(model: nn.Module) -> None:
    """Give `model` its own forward back."""
    forward = model.__dict__.get("forward")
    if not isinstance(forward, MixedForward):
        return
    del model.__dict__["forward"], model.__dict__["_original_forward"]
    if model.forward != forward.original:  # it had been replaced on the instance before us
        model.__dict__["forward"] = forward.original


def widened(data: Nested) -> Nested:
    """`data` with its float16 and bfloat16 tensors as float32."""
    return map_tensors(_widened, data)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
