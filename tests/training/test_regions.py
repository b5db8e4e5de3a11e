"""Regional compilation: what is compiled, how often, and that nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nb_accelerate.training.regions import (
    compile_regions,
    has_repeated_blocks,
    is_repeated_blocks,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return x + torch.relu(self.inner(x))


class Head(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Module()
        self.body.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = Head(4, 2)

    def forward(self, x):
        for block in self.body.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_alike_blocks_are_compiled_once_and_give_the_same_numbers():
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    model = Model()
    x = torch.randn(3, 4, requires_grad=True) * 1  # no leaf, as what later blocks are given
    expected, names = model(x), list(model.state_dict())
    assert compile_regions(model, backend=backend) is model
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == names
    assert len(graphs) == 2  # one block, and the head

    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_blocks_are_a_list_of_one_class():
    model = Model()
    assert has_repeated_blocks(model)
    assert not is_repeated_blocks(model)
    assert is_repeated_blocks(model.body.blocks)
    mixed = nn.ModuleList([nn.Linear(1, 1), nn.ReLU()])
    for other in (mixed, nn.ModuleList(), nn.Sequential(Block(), Block())):
        assert not has_repeated_blocks(other)
