"""Who does what: parts of inputs, decorators, and the order of the ranks, without processes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nb_accelerate.errors import SpecError
from nb_accelerate.training import Accelerator
from nb_accelerate.training.roles import share_of


@given(st.lists(st.integers()), st.integers(1, 6))
def test_the_parts_are_the_whole_in_order_and_differ_by_one_at_most(inputs, ranks) -> None:
    parts = [share_of(inputs, rank, ranks) for rank in range(ranks)]
    assert [item for part in parts for item in part] == inputs
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@given(st.lists(st.integers(), min_size=1), st.integers(1, 6))
def test_padded_parts_are_equally_long_and_repeat_the_last_element(inputs, ranks) -> None:
    parts = [share_of(inputs, rank, ranks, apply_padding=True) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    joined = [item for part in parts for item in part]
    for rank, part in enumerate(parts):
        own = share_of(inputs, rank, ranks)
        assert part[: len(own)] == own
        assert set(part[len(own) :]) <= {inputs[-1]}
    assert len(joined) - len(inputs) < ranks


@pytest.mark.parametrize("make", [list, tuple, torch.tensor, np.array])
def test_sequences_of_every_kind_are_split(make) -> None:
    inputs = make([1, 2, 3])
    assert [list(map(int, share_of(inputs, rank, 2))) for rank in (0, 1)] == [[1, 2], [3]]


def test_what_cannot_be_split_is_shared_whole() -> None:
    for whole in ("a prompt", 7, None):
        assert share_of(whole, 1, 2) == whole


def test_dicts_are_split_value_by_value_and_must_be_even() -> None:
    inputs = {"a": [1, 2, 3], "b": torch.tensor([4, 5, 6])}
    part = share_of(inputs, 1, 2, apply_padding=True)
    assert part["a"] == [3, 3]
    assert part["b"].tolist() == [6, 6]
    with pytest.raises(SpecError, match="'a': 1, 'b': 2"):
        share_of({"a": [1], "b": [1, 2]}, 0, 2)


def test_datasets_are_split_by_selection() -> None:
    class Dataset:
        column_names = ("x",)

        def __len__(self) -> int:
            return 3

        def __getitem__(self, part) -> dict:
            raise AssertionError("a slice of a dataset is a dict, no dataset")

        def select(self, indices) -> SimpleNamespace:
            return SimpleNamespace(indices=indices)

    assert share_of(Dataset(), 0, 2).indices == [0, 1]
    assert share_of(Dataset(), 1, 2, apply_padding=True).indices == [2, 2]


def test_only_what_can_be_padded_is_padded() -> None:
    with pytest.raises(SpecError, match="not a ndarray"):
        share_of(np.array([1, 2, 3]), 1, 2, apply_padding=True)


def test_alone_everything_is_ones_own() -> None:
    accelerator = Accelerator()
    inputs = ["a", "b"]
    with accelerator.split_between_processes(inputs) as part:
        assert part is inputs
    with accelerator.main_process_first():
        value = accelerator.on_main_process(lambda: 7)()
    assert value == 7
    accelerator.wait_for_everyone()
    tensor = torch.ones(2)
    assert accelerator.gather(tensor) is tensor
    assert accelerator.pad_across_processes(tensor) is tensor
    assert accelerator.broadcast(tensor) is tensor
    assert accelerator.gather_object([1]) == [1]
    mean = accelerator.reduce(torch.tensor([1, 2]), "mean")
    assert mean.tolist() == [1.0, 2.0]
    assert mean.is_floating_point()
