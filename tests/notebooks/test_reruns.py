"""Launch, edit, launch again: each launch runs what the kernel and the disk have now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.notebooks.kernel import Kernel


def test_the_newest_function_runs_also_after_a_failure(kernel: Kernel) -> None:
    for version in range(5):
        kernel.run(f"""
        def train():
            print("this is version {version}")
            if {version} in (1, 3):
                raise ValueError("version {version} fails")
            return {version}
        """)
        launch = kernel.start("run = notebook_launcher(train, num_processes=2)")
        if version in (1, 3):
            assert kernel.failed(launch).text == f"version {version} fails"
        else:
            kernel.succeeded(launch)
            assert kernel.ask("list(run.values)") == [version] * 2
        assert set(launch.text.split("this is version ")[1:][0][:1]) == {str(version)}


def test_a_helper_of_another_cell_is_the_one_that_the_kernel_has_now(kernel: Kernel) -> None:
    kernel.run("""
    def train():
        return helper(), CONSTANT, Net().size
    """)
    for version in range(3):
        kernel.run(f"""
        def helper():
            return {version}

        CONSTANT = {version}

        class Net:
            size = {version}
        """)
        kernel.run("run = notebook_launcher(train, num_processes=2)")
        assert kernel.ask("list(run.values)") == [[version] * 3] * 2


def test_a_module_edited_on_disk_is_read_anew(kernel: Kernel) -> None:
    """Within one second and at one length, so that its cached bytecode looks current."""
    (kernel.folder / "helper_module.py").write_text("def answer():\n    return 0\n")
    kernel.run("""
    import helper_module

    def train():
        return helper_module.answer()
    """)
    for version in range(4):
        (kernel.folder / "helper_module.py").write_text(f"def answer():\n    return {version}\n")
        kernel.run("run = notebook_launcher(train, num_processes=2)")
        assert kernel.ask("list(run.values)") == [version] * 2


def test_a_module_made_after_the_first_launch_is_found(kernel: Kernel) -> None:
    kernel.run("notebook_launcher(os.getpid, num_processes=2)")
    (kernel.folder / "late_module.py").write_text("VALUE = 5\n")
    kernel.run("""
    def train():
        import late_module
        return late_module.VALUE

    run = notebook_launcher(train, num_processes=2)
    """)
    assert kernel.ask("list(run.values)") == [5, 5]


def test_a_path_and_a_directory_changed_between_launches_hold_in_the_ranks(kernel: Kernel) -> None:
    elsewhere = kernel.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "module_elsewhere.py").write_text("VALUE = 6\n")
    kernel.run("""
    def train():
        import module_elsewhere
        return module_elsewhere.VALUE, os.getcwd(), os.environ.get("MY_SETTING")

    before = os.getcwd(), list(sys.path)
    sys.path.append(os.path.abspath("elsewhere"))
    os.chdir("elsewhere")
    os.environ["MY_SETTING"] = "on"
    try:
        run = notebook_launcher(train, num_processes=2)
    finally:
        os.chdir(before[0])
        sys.path[:] = before[1]
        del os.environ["MY_SETTING"]
    """)
    assert kernel.ask("list(run.values)") == [[6, str(elsewhere.resolve()), "on"]] * 2


def test_each_launch_is_of_fresh_processes(kernel: Kernel) -> None:
    kernel.run("""
    def train():
        import torch
        first = not hasattr(torch, "_mark_of_a_rank")
        torch._mark_of_a_rank = True
        return first, os.getpid()

    runs = [notebook_launcher(train, num_processes=2) for _ in range(3)]
    """)
    told = kernel.ask("[list(value) for run in runs for value in run.values]")
    assert all(first for first, _ in told)
    assert len({pid for _, pid in told}) == 6


def test_launches_of_different_sizes_follow_each_other(kernel: Kernel) -> None:
    """Ranks made ahead are of the last launch's size."""
    kernel.run("""
    def train():
        import torch, torch.distributed as dist
        total = torch.ones(1)
        dist.all_reduce(total)
        return int(total)

    totals = [notebook_launcher(train, num_processes=n).value for n in (1, 3, 2, 1, 2)]
    """)
    assert kernel.ask("totals") == [1, 3, 2, 1, 2]


def test_the_cell_that_prepares_can_run_twice(kernel: Kernel) -> None:
    accelerator = pytest.importorskip("nb_accelerate.training.accelerator")
    del accelerator
    kernel.run("""
    import torch
    from nb_accelerate import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """)
    for _ in range(2):
        kernel.run("model, optimizer = accelerator.prepare(model, optimizer)")
    assert kernel.ask("sorted(model.state_dict())") == ["bias", "weight"]
    kernel.run("""
    def train():
        accelerator = Accelerator()
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        once = accelerator.prepare(net, opt)
        twice = accelerator.prepare(*once)
        return once[0] is twice[0], once[1] is twice[1], sorted(
            accelerator.unwrap_model(twice[0]).state_dict()
        )

    run = notebook_launcher(train, num_processes=2)
    """)
    assert kernel.ask("list(run.values)") == [[True, True, ["bias", "weight"]]] * 2
