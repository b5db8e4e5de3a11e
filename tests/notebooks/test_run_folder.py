"""What a run leaves on disk, and how a later cell finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.notebooks.kernel import Kernel

TRAIN = """
def train(epochs):
    import torch.distributed as dist
    from nb_accelerate.replica import current_replica
    for step in range(epochs):
        current_replica().reporter.metrics({"loss": 1 / (step + 1) + dist.get_rank()}, step)
        print(f"step {step}")
    return "trained"
"""


@pytest.fixture(scope="module")
def trained(kernel_of_module: Kernel) -> Kernel:
    kernel_of_module.run(TRAIN)
    kernel_of_module.run("run = notebook_launcher(train, (5,), 2, mixed_precision='bf16')")
    return kernel_of_module


def folder_of(kernel: Kernel) -> Path:
    return Path(kernel.ask("str(run.folder)"))


def test_metrics_of_all_ranks_are_in_the_kernel_and_on_disk(trained: Kernel) -> None:
    wanted = [
        {"rank": rank, "step": step, "values": {"loss": 1 / (step + 1) + rank}}
        for rank in range(2)
        for step in range(5)
    ]
    text = (folder_of(trained) / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    found = [{key: line[key] for key in ("rank", "step", "values")} for line in lines]
    assert sorted(found, key=lambda line: (line["rank"], line["step"])) == wanted
    assert trained.ask("run.metrics.ranks, run.metrics.names") == [[0, 1], ["loss"]]


def test_output_is_in_the_kernel_and_on_disk(trained: Kernel) -> None:
    lines = (folder_of(trained) / "log.txt").read_text().splitlines()
    assert sorted(lines) == sorted(f"[rank {r}] step {s}" for r in range(2) for s in range(5))
    assert trained.ask("sorted((l.rank, l.text) for l in run.log)") == sorted(
        [r, f"step {s}"] for r in range(2) for s in range(5)
    )


def test_the_folder_says_what_was_asked_for_and_what_came_of_it(trained: Kernel) -> None:
    spec = json.loads((folder_of(trained) / "spec.json").read_text())
    assert spec["name"] == "train"
    assert spec["spec"]["num_processes"] == 2
    assert spec["spec"]["mixed_precision"] == "bf16"
    outcome = json.loads((folder_of(trained) / "outcome.json").read_text())
    assert outcome["ok"] is True
    assert outcome["status"] == "finished"


def test_a_later_cell_lists_and_draws_the_run(trained: Kernel) -> None:
    cell = trained.run("past = nb_accelerate.runs()[-1]; past")
    assert trained.ask("past.name, past.status, str(past.folder) == str(run.folder)") == [
        "train",
        "ok",
        True,
    ]
    assert "loss" in cell.displays[-1]["text/html"]
    cell = trained.run("run.show()")
    assert "loss" in cell.displays[-1]["text/html"]
    assert "step 4" in cell.displays[-1]["text/html"]


@pytest.mark.parametrize(
    ("statement", "status"),
    [("raise ValueError('on purpose')", "failed"), ("os._exit(3)", "failed")],
)
def test_a_failed_run_is_kept_with_its_error(kernel: Kernel, statement: str, status: str) -> None:
    kernel.fails(f"""
    def doomed():
        print("before the end")
        {statement}

    notebook_launcher(doomed, num_processes=2)
    """)
    told = kernel.ask(
        "[(r.name, r.status, r.outcome['summary']) for r in nb_accelerate.runs()][-1]"
    )
    assert told[:2] == ["doomed", status]
    assert "doomed: failed" in told[2]
    assert kernel.ask("'before the end' in repr(nb_accelerate.runs()[-1].log)")


def test_runs_end_in_the_order_in_which_they_began(kernel: Kernel) -> None:
    for name in "abc":
        kernel.run(f"""
        def {name}():
            pass

        notebook_launcher({name}, num_processes=2)
        """)
    assert kernel.ask("[r.name for r in nb_accelerate.runs()][-3:]") == ["a", "b", "c"]


def test_a_run_goes_on_when_its_folder_cannot_be_written(kernel: Kernel) -> None:
    (kernel.folder / "no_folder").write_text("a file is in the way")
    cell = kernel.run("""
    run = notebook_launcher(lambda: print("all the same"), num_processes=2, run_root="no_folder")
    """)
    assert "all the same" in cell.text
    assert "cannot be written" in cell.text
    assert kernel.ask("run.status") == "finished"


def test_a_run_of_a_killed_kernel_is_cut_off_for_others(new_kernel: Kernel) -> None:
    new_kernel.start("""
    def train():
        here()
        time.sleep(60)

    run = notebook_launcher(train, num_processes=2)
    """)
    new_kernel.witnesses(2)
    new_kernel.kill()
    new_kernel.restart(politely=False)
    new_kernel.run("import nb_accelerate")
    assert new_kernel.ask("[(r.name, r.status) for r in nb_accelerate.runs()]") == [
        ["train", "cut off"]
    ]
