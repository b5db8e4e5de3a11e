"""Which ranks a kernel makes before its first launch."""

from __future__ import annotations

import json

from nb_accelerate.launch.forecast import likely_seats
from nb_accelerate.machine import Gpu, Machine
from nb_accelerate.plan import make_plan
from nb_accelerate.spec import LaunchSpec

MACHINE = Machine(cpus=4)


def leave_a_run(root, text):
    folder = root / "20260101-000000-train-a"
    folder.mkdir()
    (folder / "spec.json").write_text(text)


def asked(**settings):
    return json.dumps({"spec": LaunchSpec(**settings).to_settings()})


def test_a_kernel_expects_a_launch_like_the_newest_run(tmp_path):
    leave_a_run(tmp_path, asked(num_processes=3, hardware="cpu"))
    assert [seat.rank for seat in likely_seats(tmp_path, MACHINE)] == [0, 1, 2]


def test_without_a_run_or_with_one_that_cannot_be_read_nothing_is_expected(tmp_path):
    assert likely_seats(tmp_path, MACHINE) == ()
    leave_a_run(tmp_path, '{"spec": {"num_processes": "many"}}')
    assert likely_seats(tmp_path, MACHINE) == ()


def test_ranks_on_devices_are_not_made_before_they_are_asked_for(tmp_path):
    spec = LaunchSpec(num_processes=2, hardware="cuda")
    machine = Machine(cpus=4, gpus=(Gpu(index=0), Gpu(index=1)))
    assert [seat.device for seat in make_plan(spec, machine).seats] == ["cuda:0", "cuda:1"]
    leave_a_run(tmp_path, asked(num_processes=2, hardware="cuda"))
    assert likely_seats(tmp_path, machine) == ()


def test_a_run_that_this_machine_cannot_repeat_is_no_guide(tmp_path):
    leave_a_run(tmp_path, asked(num_processes=2, hardware="cuda"))
    assert likely_seats(tmp_path, MACHINE) == ()
