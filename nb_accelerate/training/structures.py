"""Structures: walking, measuring and rebuilding batches. The names are Accelerate's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nb_accelerate.errors import SpecError

from .nested import Anything, Nested, flatten, map_leaves, map_tensors, with_values
from .precision import MixedForward, Precision, widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "ConvertOutputsToFp32",
    "TensorInformation",
    "concatenate",
    "convert_outputs_to_fp32",
    "convert_to_fp32",
    "find_batch_size",
    "find_device",
    "get_data_structure",
    "get_shape",
    "honor_type",
    "ignorant_find_batch_size",
    "initialize_tensors",
    "is_namedtuple",
    "is_tensor_information",
    "is_torch_tensor",
    "listify",
    "pad_input_tensors",
    "recursively_apply",
    "send_to_device",
    "slice_tensors",
]


@dataclass
class TensorInformation:
    """What is to be known of a tensor to make one like it."""

    shape: torch.Size
    dtype: torch.dtype


def is_torch_tensor(tensor: object) -> bool:
    """Whether it is a tensor of torch's."""
    return isinstance(tensor, torch.Tensor)


def is_tensor_information(tensor_info: object) -> bool:
    """Whether it is a `TensorInformation`."""
    return isinstance(tensor_info, TensorInformation)


def is_namedtuple(data: object) -> bool:
    """Whether it is an instance of a namedtuple or NamedTuple class."""
    return isinstance(data, tuple) and hasattr(data, "_fields") and hasattr(data, "_asdict")


def honor_type(obj: Nested, generator: Iterable[Nested]) -> Nested:
    """The items in a container of the type that `obj` has: list, tuple or named tuple."""
    return type(obj)(*generator) if is_namedtuple(obj) else type(obj)(generator)


def recursively_apply(
    func: Callable[..., Any],
    data: Nested,
    *args: Anything,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Anything,
) -> Nested:
    """Apply a function to what is in lists, tuples, named tuples and mappings, which are kept.

    Args:
        func: called with an item, `args` and `kwargs`.
        data: where the items are.
        args: for `func`.
        test_type: tells whether an item is meant. Others stay as they are.
        error_on_other_type: others are an error.
        kwargs: for `func`.

    Raises:
        TypeError: something else is there, with `error_on_other_type`.
    """

    def applied(leaf: Nested) -> Nested:
        if test_type(leaf):
            return func(leaf, *args, **kwargs)
        if error_on_other_type:
            raise TypeError(
                f"{getattr(func, '__name__', func)} was applied to a {type(leaf).__name__}, which "
                f"{getattr(test_type, '__name__', test_type)} refuses. Lists, tuples and dicts may "
                f"hold nothing else here."
            )
        return leaf

    return map_leaves(applied, data)


# ---------------------------------------------------------------- what it is
def find_batch_size(data: Nested) -> int:
    """Samples in a batch: the first axis of its first tensor.

    Raises:
        SpecError: a container is empty.
        TypeError: what comes first is no tensor.
    """
    if isinstance(data, list | tuple | Mapping):
        if not data:
            raise SpecError(f"An empty {type(data).__name__} has no batch size.")
        return find_batch_size(next(iter(data.values() if isinstance(data, Mapping) else data)))
    if not isinstance(data, torch.Tensor):
        raise TypeError(
            f"The batch size is that of a tensor, but a {type(data).__name__} is first."
        )
    return int(data.shape[0])


def ignorant_find_batch_size(data: Nested) -> int | None:
    """Likewise; None where it cannot be told."""
    try:
        return find_batch_size(data)
    except (ValueError, TypeError):
        return None


def find_device(data: Nested) -> torch.device | None:
    """Where the first tensor is; None if there is none."""
    leaves, _ = flatten(data)
    return next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), None)


def get_shape(data: Nested) -> Nested:
    """`data` with each tensor's shape, as a list, in its place."""
    return map_tensors(lambda tensor: list(tensor.shape), data)


def get_data_structure(data: Nested) -> Nested:
    """`data` with a `TensorInformation` in each tensor's place."""
    return map_tensors(lambda tensor: TensorInformation(tensor.shape, tensor.dtype), data)


def initialize_tensors(data_structure: Nested) -> Nested:
    """The reverse: tensors of such shapes and types, their values whatever memory held."""
    return recursively_apply(
        lambda info: torch.empty(info.shape, dtype=info.dtype),
        data_structure,
        test_type=is_tensor_information,
    )


# ---------------------------------------------------------------- other forms of it
def listify(data: Nested) -> Nested:
    """`data` with its tensors as lists of numbers, or as numbers."""
    return map_tensors(lambda tensor: tensor.detach().cpu().tolist(), data)


def slice_tensors(
    data: Nested,
    tensor_slice: slice,
    process_index: int | None = None,  # noqa: ARG001  # upstream's
    num_processes: int | None = None,  # noqa: ARG001  # upstream's
) -> Nested:
    """`data` with a slice of each tensor, along its first axis."""
    return map_tensors(lambda tensor: tensor[tensor_slice], data)


def concatenate(data: Sequence[Nested], dim: int = 0) -> Nested:
    """Batches of one structure as one batch; a single one as it is.

    Raises:
        TypeError: batches hold something that is no tensor.
    """
    first = data[0]
    if isinstance(first, list | tuple):
        return honor_type(first, [concatenate(column, dim) for column in zip(*data, strict=True)])
    if isinstance(first, Mapping):
        return with_values(first, {k: concatenate([one[k] for one in data], dim) for k in first})
    if isinstance(first, torch.Tensor):
        return torch.cat(tuple(data), dim=dim)
    if len(data) == 1:
        return first
    raise TypeError(f"Only tensors can be concatenated, but {type(first).__name__}s are there.")


def pad_input_tensors(tensor: Nested, batch_size: int, num_processes: int, dim: int = 0) -> Nested:
    """Repeat the last sample of each tensor until the batch can be shared out evenly."""
    missing = -batch_size % num_processes

    def padded(one: torch.Tensor) -> torch.Tensor:
        last = one.narrow(dim, one.shape[dim] - 1, 1)
        return torch.cat([one, *[last] * missing], dim)

    return recursively_apply(padded, tensor, error_on_other_type=True)


def send_to_device(
    tensor: Nested,
    device: torch.device | str | int,
    non_blocking: bool = False,  # noqa: FBT001, FBT002  # upstream's
    skip_keys: str | Sequence[str] | None = None,
) -> Nested:
    """`tensor` with all that can move, tensors or not, on the device; the rest passes as it is.

    Args:
        tensor: a tensor, anything with a `to`, or a structure of them.
        device: where to.
        non_blocking: copy while computing goes on, where the device can.
        skip_keys: keys of dicts, at any depth, whose values stay where they are.
    """
    if isinstance(tensor, torch.Tensor):
        return tensor if tensor.device == device else tensor.to(device, non_blocking=non_blocking)
    if hasattr(tensor, "to"):
        return _moved(tensor, device, non_blocking)
    if isinstance(tensor, list | tuple):
        return honor_type(
            tensor, [send_to_device(one, device, non_blocking, skip_keys) for one in tensor]
        )
    if not isinstance(tensor, Mapping):
        return tensor
    stay = (skip_keys,) if isinstance(skip_keys, str) else skip_keys or ()
    there = {
        key: one if key in stay else send_to_device(one, device, non_blocking, skip_keys)
        for key, one in tensor.items()
    }
    return with_values(tensor, there)


def _moved(thing: Anything, device: object, non_blocking: bool) -> Anything:  # noqa: FBT001
    try:
        return thing.to(device, non_blocking=non_blocking)
    except TypeError:  # its `to` takes the device alone
        return thing.to(device)


# ---------------------------------------------------------------- precision
def convert_to_fp32(tensor: Nested) -> Nested:
    """`tensor` with its float16 and bfloat16 tensors as float32."""
    return widened(tensor)


class ConvertOutputsToFp32(MixedForward):
    """A model's forward whose 16-bit outputs are float32; unwrapping takes it away again."""

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        super().__init__(model_forward, Precision("no", "cpu"))

    @property
    def model_forward(self) -> Callable[..., Any]:
        """The model's own."""
        return self.original


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> ConvertOutputsToFp32:
    """The forward with its 16-bit outputs as float32."""
    return ConvertOutputsToFp32(model_forward)
