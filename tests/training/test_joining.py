"""Processes that another launcher started: they become replicas when they first ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader, Dataset

from nb_accelerate.replica import SOLO
from nb_accelerate.training import Accelerator
from nb_accelerate.training.joining import replica_here

SCRIPT = """
import json, sys, torch
import torch.distributed as dist
from nb_accelerate import Accelerator
from nb_accelerate.training import set_seed
from nb_accelerate.training.ambient import collectives_here
from nb_accelerate.training.states import PartialState

if sys.argv[2] == "user":
    dist.init_process_group("gloo")
if sys.argv[2] == "state":
    PartialState(cpu=True)
if sys.argv[2] == "ambient":
    collectives_here().barrier()
accelerator = Accelerator(cpu=True)
set_seed(7, device_specific=True)
model = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
answer = {
    "rank": accelerator.process_index, "world": accelerator.num_processes,
    "local": PartialState().local_process_index, "backend": accelerator.state.backend,
    "kind": str(accelerator.distributed_type), "device": str(accelerator.device),
    "gradient": model.module.weight.grad.item(), "seed": torch.initial_seed(),
    "ranks": collectives_here().gather(torch.tensor([accelerator.process_index])).tolist(),
    "again": Accelerator().num_processes,
}
with open(f"{sys.argv[1]}/{accelerator.process_index}.json", "w") as out:
    json.dump(answer, out)
"""

TORCHRUN = {
    "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "29500",
}  # fmt: skip


@pytest.mark.parametrize("who_joins", ["accelerator", "user", "state", "ambient"])
def test_a_script_under_torchrun_trains_as_one_of_its_ranks(tmp_path, who_joins: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    home = str(Path(__file__).parents[2])
    launched = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
         str(script), str(tmp_path), who_joins],
        env={**os.environ, "PYTHONPATH": home, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            "rank": rank, "world": 2, "local": rank, "backend": "gloo",
            "kind": "DistributedType.MULTI_CPU", "device": "cpu", "gradient": 1.5,
            "seed": 7 + rank, "ranks": [0, 1], "again": 2,
        }  # fmt: skip


class Asking(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: int) -> int:
        return Accelerator(cpu=True).num_processes


def test_a_loaders_worker_does_not_take_itself_for_the_rank_that_started_it(monkeypatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    loader = DataLoader(Asking(), num_workers=1, multiprocessing_context="fork", timeout=30)
    assert [int(answer) for answer in loader] == [1]


def test_a_notebooks_kernel_does_not_believe_what_an_earlier_launcher_left(monkeypatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert replica_here() is SOLO
    assert Accelerator(cpu=True).num_processes == 1


def test_a_part_of_torchruns_variables_makes_no_rank(monkeypatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert replica_here() is SOLO
