"""Walking nested data: containers keep their types."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType

import pytest
import torch

from nb_accelerate.training.nested import flatten, map_tensors
from nb_accelerate.training.precision import widened

Pair = namedtuple("Pair", "x y")


class Output(OrderedDict):
    """Keys that are attributes as well, as outputs of transformers have them."""

    def __setitem__(self, key, value) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: [t, "text"],
        lambda t: (t, None),
        lambda t: Pair(t, 3),
        lambda t: {"a": t, "b": [t]},
        lambda t: defaultdict(list, a=t),
        lambda t: UserDict(a=t),
        lambda t: MappingProxyType({"a": t}),
        lambda t: Output(a=t),
    ],
)
def test_containers_keep_their_types_and_other_leaves(wrap) -> None:
    data = wrap(torch.ones(1))
    doubled = map_tensors(lambda t: t * 2, data)
    assert type(doubled) is type(data)
    before, _ = flatten(data)
    after, _ = flatten(doubled)
    assert [t * 2 if isinstance(t, torch.Tensor) else t for t in before] == after
    assert any(isinstance(t, torch.Tensor) for t in after)


def test_attributes_that_mirror_keys_follow() -> None:
    doubled = map_tensors(lambda t: t * 2, Output(a=torch.ones(1)))
    assert doubled.a is doubled["a"]


def test_leaves_can_be_put_back_in_their_places() -> None:
    data = {"a": [torch.ones(1), "b"], "c": (3,)}
    leaves, rebuild = flatten(data)
    assert leaves[1:] == ["b", 3]
    assert rebuild([10, 20, 30]) == {"a": [10, 20], "c": (30,)}


def test_16_bit_floats_are_widened_and_others_are_left() -> None:
    half, whole = torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.int64)
    found = widened({"half": half, "whole": whole, "text": "a"})
    assert found["half"].dtype is torch.float32
    assert found["whole"] is whole
    assert found["text"] == "a"
