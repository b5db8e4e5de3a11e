"""What comes of a training: return values, or the name of what cannot travel; trained weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.notebooks.kernel import Kernel


# ---------------------------------------------------------------- values
def test_every_ranks_value_comes_back_tensors_included(kernel: Kernel) -> None:
    kernel.run("""
    import torch

    def train():
        import torch.distributed as dist
        rank = dist.get_rank()
        return {"rank": rank, "w": torch.full((2, 3), rank * 1.0), "half": torch.ones(2).bfloat16()}

    run = notebook_launcher(train, num_processes=3)
    """)
    assert kernel.ask("run.value['rank']") == 0
    assert kernel.ask("[(v['rank'], v['w'].tolist()) for v in run.values]") == [
        [rank, [[float(rank)] * 3] * 2] for rank in range(3)
    ]
    assert kernel.ask("str(run.values[2]['half'].dtype)") == "torch.bfloat16"


def test_big_values_come_back_whole_and_can_be_written_to(kernel: Kernel) -> None:
    kernel.run("""
    import numpy, torch

    def train(given):
        given += 1  # each rank's own copy
        return {"t": torch.arange(5_000_000), "n": numpy.ones(1_000_000), "given": given}

    data = torch.zeros(1_000_000)
    run = notebook_launcher(train, (data,), num_processes=2)
    for value in run.values:
        value["t"] += 1
        value["n"] *= 2
    """)
    assert (
        kernel.ask("[(v['t'][-1].item(), v['n'].sum()) for v in run.values]")
        == [[5_000_000, 2_000_000.0]] * 2
    )
    assert kernel.ask("data.sum().item(), [v['given'].mean().item() for v in run.values]") == [
        0,
        [1.0, 1.0],
    ]


def test_a_value_that_cannot_travel_is_named_and_nothing_else_is_lost(kernel: Kernel) -> None:
    error = kernel.fails("""
    def train():
        import torch.distributed as dist
        rank = dist.get_rank()
        with open(f"saved-{rank}", "w") as file:
            file.write("all of it")
        return {"rank": rank, "guard": threading.Lock() if rank == 1 else None}

    notebook_launcher(train, num_processes=3)
    """)
    assert error.name == "Unreturnable"
    assert "rank 1" in error.text
    assert "guard" in error.text
    assert "lock" in error.text
    assert kernel.ask("[sys.last_value.run.values[r]['rank'] for r in (0, 2)]") == [0, 2]
    assert kernel.ask("sorted(sys.last_value.run.values.returned()), sys.last_value.rank") == [
        [0, 2],
        1,
    ]
    assert [(kernel.folder / f"saved-{rank}").read_text() for rank in range(3)] == ["all of it"] * 3


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("threading.Lock()", "lock"),
        ("(n for n in range(3))", "generator"),
        ("sys._getframe()", "frame"),
    ],
)
def test_what_cannot_travel_is_named_by_its_type(kernel: Kernel, value: str, kind: str) -> None:
    error = kernel.fails(f"notebook_launcher(lambda: [1, {value}], num_processes=2)")
    assert error.name == "Unreturnable"
    assert kind in error.text


def test_values_of_a_failed_run_are_those_that_were_returned(kernel: Kernel) -> None:
    error = kernel.fails("""
    def train():
        import torch.distributed as dist
        if dist.get_rank() == 0:
            return "all is well"
        time.sleep(0.5)
        os._exit(3)

    notebook_launcher(train, num_processes=2)
    """)
    assert error.name == "WorkerDied"
    assert kernel.ask("sys.last_value.run.value") == "all is well"
    assert kernel.ask("sys.last_value.run.values.returned()") == {"0": "all is well"}


def test_a_value_can_be_none_and_a_generator_function_is_not_run(kernel: Kernel) -> None:
    kernel.run("run = notebook_launcher(lambda: None, num_processes=2)")
    assert kernel.ask("list(run.values)") == [None, None]


# ---------------------------------------------------------------- weights
WRITE_BACK = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
before = {name: value.clone() for name, value in model.state_dict().items()}
identities = [id(parameter) for parameter in model.parameters()]

def train(model, optimizer):
    from torch.nn.parallel import DistributedDataParallel
    import torch.distributed as dist
    torch.manual_seed(dist.get_rank())
    net = DistributedDataParallel(model)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}

def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)
"""


def test_a_model_of_the_kernel_is_trained_when_it_is_written_back(kernel: Kernel) -> None:
    kernel.run(WRITE_BACK)
    kernel.run("""
    run = notebook_launcher(train, (model, optimizer), 2, write_back=(model, optimizer))
    """)
    assert kernel.ask("same(model.state_dict(), run.value)")
    assert not kernel.ask("same(model.state_dict(), before)")
    assert kernel.ask("[id(parameter) for parameter in model.parameters()] == identities")
    assert kernel.ask("optimizer.state[next(model.parameters())]['step'].item()") == 5
    # A second launch goes on from there.
    kernel.run("""
    run = notebook_launcher(train, (model, optimizer), 2, write_back=(model, optimizer))
    """)
    assert kernel.ask("optimizer.state[next(model.parameters())]['step'].item()") == 10


def test_without_write_back_the_kernels_model_is_left_alone(kernel: Kernel) -> None:
    kernel.run(WRITE_BACK)
    kernel.run("run = notebook_launcher(train, (model, optimizer), 2)")
    assert kernel.ask("same(model.state_dict(), before)")
    assert kernel.ask("len(optimizer.state)") == 0


def test_a_failed_training_leaves_the_kernels_model_as_it_was(kernel: Kernel) -> None:
    kernel.run(WRITE_BACK)
    error = kernel.fails("""
    def fail(model, optimizer):
        train(model, optimizer)
        raise ValueError("too late")

    notebook_launcher(fail, (model, optimizer), 2, write_back=(model, optimizer))
    """)
    assert error.name == "ValueError"
    assert kernel.ask("same(model.state_dict(), before)")


def test_weights_come_back_also_when_the_value_cannot(kernel: Kernel) -> None:
    kernel.run(WRITE_BACK)
    error = kernel.fails("""
    def careless(model, optimizer):
        train(model, optimizer)
        return threading.Lock()

    notebook_launcher(careless, (model, optimizer), 2, write_back=(model, optimizer))
    """)
    assert error.name == "Unreturnable"
    assert not kernel.ask("same(model.state_dict(), before)"), "the training is lost"


def test_what_cannot_be_written_back_is_refused_before_anything_starts(kernel: Kernel) -> None:
    error = kernel.fails("notebook_launcher(here, (), 2, write_back={'weights': 1})")
    assert error.name == "PayloadError"
    assert "dict" in error.text
    assert kernel.witnesses() == []
