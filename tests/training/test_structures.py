"""Structures: what is walked, measured and rebuilt, and what the types of containers become."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from typing import NamedTuple

import pytest
import torch
from torch import nn

from nb_accelerate.training import structures
from nb_accelerate.training.models import unwrap_model
from nb_accelerate.training.operations import (
    CannotPadNestedTensorWarning,
    broadcast_object_list,
    copy_tensor_to_devices,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
)

Pair = namedtuple("Pair", "first second")  # both kinds are met


class Typed(NamedTuple):
    first: object
    second: object


class Movable:
    """Moves as transformers' batches do, and takes no other argument."""

    def __init__(self) -> None:
        self.device = None

    def to(self, device):
        self.device = torch.device(device)
        return self


T = torch.arange(6.0).reshape(3, 2)

CONTAINERS = [
    [T, 1],
    (T, "text"),
    Pair(T, None),
    Typed(T, [T]),
    {"a": T, "b": {"c": (T,)}},
    OrderedDict(a=T),
    UserDict(a=T),
    defaultdict(list, a=[T]),
]


@pytest.mark.parametrize("data", CONTAINERS, ids=lambda data: type(data).__name__)
def test_containers_keep_their_types_whatever_is_done_to_their_tensors(data):
    for change in (
        lambda d: structures.recursively_apply(torch.neg, d),
        lambda d: structures.send_to_device(d, "meta"),
        lambda d: structures.slice_tensors(d, slice(1)),
        structures.listify,
        structures.convert_to_fp32,
        structures.get_data_structure,
    ):
        changed = change(data)
        assert type(changed) is type(data)
        assert len(changed) == len(data)
    assert structures.find_device(structures.send_to_device(data, "meta")).type == "meta"
    assert structures.find_device(data).type == "cpu"


def test_what_is_applied_takes_further_arguments_and_leaves_the_rest_alone():
    doubled = structures.recursively_apply(torch.add, [T, "x", 1], T, alpha=2)
    assert torch.equal(doubled[0], T * 3)
    assert doubled[1:] == ["x", 1]
    counted = structures.recursively_apply(len, ["ab", 1], test_type=lambda d: isinstance(d, str))
    assert counted == [2, 1]
    with pytest.raises(TypeError, match="len was applied to a int, which is_torch_tensor refuses"):
        structures.recursively_apply(len, (T, 1), error_on_other_type=True)


@pytest.mark.parametrize("data", [{"skip": T, "in": {"skip": T, "b": T}}, [{"skip": T, "b": T}]])
def test_keys_to_skip_stay_at_any_depth(data):
    for keys in ("skip", ["skip"]):
        moved = structures.send_to_device(data, "meta", skip_keys=keys)
        devices = structures.recursively_apply(lambda t: t.device.type, moved)
        assert str(devices).count("cpu") == str(data).count("skip")
        assert "meta" in str(devices)


def test_what_is_on_the_device_already_is_not_copied():
    batch = {"x": T, "more": [T]}
    for device in ("cpu", torch.device("cpu")):
        moved = structures.send_to_device(batch, device, non_blocking=True)
        assert moved["x"] is moved["more"][0] is T
    assert moved is not batch


def test_anything_that_can_move_does():
    movable = Movable()
    moved = structures.send_to_device({"a": movable, "b": "text"}, "meta")
    assert moved["a"] is movable
    assert movable.device.type == "meta"


@pytest.mark.parametrize("function", [structures.convert_to_fp32, structures.send_to_device])
def test_they_can_be_compiled_whole(function):
    arguments = ("cpu",) if function is structures.send_to_device else ()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    result = compiled(torch.zeros(1, dtype=torch.bfloat16), *arguments)
    assert result.dtype == (torch.bfloat16 if arguments else torch.float32)


def test_the_batch_size_is_that_of_the_first_tensor():
    assert structures.find_batch_size({"a": [(T,)], "b": 1}) == 3
    for empty in ([], {}, {"a": ()}):
        with pytest.raises(ValueError, match="has no batch size"):
            structures.find_batch_size(empty)
    with pytest.raises(TypeError, match="a str is first"):
        structures.find_batch_size(["text", T])
    assert structures.ignorant_find_batch_size(["text"]) is None
    assert structures.ignorant_find_batch_size([]) is None
    assert structures.ignorant_find_batch_size([T]) == 3


def test_tensors_can_be_described_and_made_again():
    data = {"a": [T.half(), "x"], "b": torch.zeros((), dtype=torch.int64)}
    described = structures.get_data_structure(data)
    assert described["a"][0] == structures.TensorInformation(torch.Size([3, 2]), torch.float16)
    made = structures.initialize_tensors(described)
    assert structures.get_shape(made) == structures.get_shape(data) == {"a": [[3, 2], "x"], "b": []}
    assert made["b"].dtype == torch.int64
    assert structures.find_device(["x"]) is None


def test_tensors_of_every_type_become_numbers():
    data = [torch.tensor(1.5, dtype=torch.bfloat16), torch.tensor([[True]]), T[0].requires_grad_()]
    assert structures.listify(data) == [1.5, [[True]], [0.0, 1.0]]


def test_batches_of_one_structure_are_joined():
    batches = [{"x": Pair(T, [T]), "y": T[:, :1]} for _ in range(3)]
    joined = structures.concatenate(batches)
    assert torch.equal(joined["x"].first, torch.cat([T, T, T]))
    assert joined["x"].second[0].shape == (9, 2)
    assert structures.concatenate([T, T], dim=1).shape == (3, 4)
    assert structures.concatenate(["alone"]) == "alone"
    with pytest.raises(TypeError, match="strs are there"):
        structures.concatenate([{"a": "x"}, {"a": "y"}])


@pytest.mark.parametrize(
    ("size", "processes"),
    [(1, 2), (3, 2), (4, 3), (3, 4), (4, 6), (1, 6), (2, 6), (61, 6), (4, 2), (12, 2)],
)
def test_a_batch_is_filled_up_with_its_last_sample(size, processes):
    batch = torch.arange(size * 2.0).reshape(size, 2)
    filled = structures.pad_input_tensors({"x": batch}, size, processes)["x"]
    assert len(filled) == -(-size // processes) * processes
    assert torch.equal(filled[:size], batch)
    assert all(torch.equal(row, batch[-1]) for row in filled[size:])


def test_named_tuples_are_known():
    assert all(structures.is_namedtuple(pair) for pair in (Pair(1, 2), Typed(1, 2)))
    assert not any(structures.is_namedtuple(other) for other in ((1, 2), "ab", object(), [1]))
    assert structures.honor_type(Pair(1, 2), iter([3, 4])) == Pair(3, 4)
    assert structures.honor_type((1,), iter([3])) == (3,)


def test_a_widened_forward_can_be_taken_away_again():
    model = nn.Linear(2, 2).to(torch.bfloat16)
    own = model.forward
    model._original_forward = own
    model.forward = structures.convert_outputs_to_fp32(own)
    assert model(T.to(torch.bfloat16)).dtype == torch.float32
    assert copy.deepcopy(model)(T.to(torch.bfloat16)).dtype == torch.float32
    unwrap_model(model, keep_fp32_wrapper=False)
    assert model.forward == own
    assert model(T.to(torch.bfloat16)).dtype == torch.bfloat16
    assert pickle.loads(pickle.dumps(model)).weight.dtype == torch.bfloat16


# ---------------------------------------------------------------- operations, alone
def test_a_process_alone_gets_its_own_data_back():
    assert gather(T) is T
    assert gather_object(["a", {"b": 1}]) == ["a", {"b": 1}]
    assert broadcast_object_list([1, 2]) == [1, 2]
    assert torch.equal(copy_tensor_to_devices(T), T)
    assert pad_across_processes(T, dim=-4) is T
    mean = reduce({"x": torch.tensor([1, 2])})["x"]
    assert (mean.tolist(), mean.dtype) == ([1.0, 2.0], torch.float32)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_left_as_they_are_with_a_warning():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])
    with pytest.warns(CannotPadNestedTensorWarning):
        assert pad_across_processes(nested) is nested
    with pytest.warns(CannotPadNestedTensorWarning):
        both = pad_across_processes({"a": nested, "b": T})
    assert both["a"] is nested
    assert torch.equal(both["b"], T)


def test_a_tensor_that_no_rank_has_cannot_be_copied():
    with pytest.raises(ValueError, match="one must have it"):
        copy_tensor_to_devices(None)
