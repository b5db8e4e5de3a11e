"""Seeds: everything that draws is seeded."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from nb_accelerate.replica import Replica, acting_as
from nb_accelerate.training import set_seed


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(1).item()]


@pytest.fixture(autouse=True)
def _own_generators():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_the_same_seed_gives_the_same_numbers_everywhere() -> None:
    set_seed(3)
    first = draws()
    assert draws() != first
    set_seed(3)
    assert draws() == first


def test_a_device_specific_seed_is_each_ranks_own() -> None:
    set_seed(3)
    first = draws()
    with acting_as(Replica(rank=1, world_size=2)):
        set_seed(3, device_specific=True)
        assert draws() != first
        set_seed(2, device_specific=True)
        assert draws() == first


def test_deterministic_operations_can_be_asked_for() -> None:
    try:
        set_seed(3, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(mode=False)
