"""A rank's environment: the kernel's, less what an earlier launcher left, plus torchrun's."""

from __future__ import annotations

from pathlib import Path

import pytest

from nb_accelerate.launch.environment import rank_environment, run_root, with_rendezvous
from nb_accelerate.messages import Rendezvous
from nb_accelerate.plan import Seat

SEAT = Seat(rank=1, local_rank=1, world_size=2, local_world_size=2, num_threads=3)


def test_a_rank_gets_all_that_torchrun_sets():
    environment = with_rendezvous(
        rank_environment({"HOME": "/home/me"}, SEAT), Rendezvous("127.0.0.1", 4321), "run7"
    )
    wanted = {
        "HOME": "/home/me",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
        "TORCHELASTIC_RUN_ID": "run7",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "3",
    }
    assert wanted.items() <= environment.items()


@pytest.mark.parametrize(
    "stale",
    ["MASTER_PORT", "NODE_RANK", "TORCHELASTIC_ERROR_FILE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"],
)
def test_what_an_earlier_launcher_left_does_not_reach_a_rank(stale: str):
    assert stale not in rank_environment({stale: "29500"}, SEAT)


def test_one_machine_talks_over_loopback_and_several_do_not_have_to():
    assert rank_environment({}, SEAT)["GLOO_SOCKET_IFNAME"].startswith("lo")
    several = Seat(rank=0, local_rank=0, world_size=2, local_world_size=1, num_nodes=2)
    assert "GLOO_SOCKET_IFNAME" not in rank_environment({}, several)


def test_run_folders_go_where_they_are_wanted_or_to_the_users_state(monkeypatch):
    assert run_root("~/runs") == Path.home() / "runs"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert run_root(None) == Path("/state/nb_accelerate/runs")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert run_root(None) == Path.home() / ".local/state/nb_accelerate/runs"
