"""make_plan: every decision, every refusal and every note, on machines that are values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nb_accelerate.errors import PlanError, SpecError
from nb_accelerate.machine import Gpu, Machine, Torch, Tpu
from nb_accelerate.plan import KINDS, Plan, make_plan
from nb_accelerate.spec import LaunchSpec

unhurried = settings(deadline=None)  # a busy machine is no failure

GB = 2**30


def gpus(*names: str, capability: tuple[int, int] | None = (9, 0)) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=i, name=n, capability=capability) for i, n in enumerate(names))


LAPTOP = Machine(cpus=8, memory_bytes=16 * GB, available_memory_bytes=12 * GB)
TWO_T4 = Machine(cpus=8, gpus=gpus("NVIDIA T4", "NVIDIA T4", capability=(7, 5)))
EIGHT_H100 = Machine(cpus=96, gpus=gpus(*["NVIDIA H100"] * 8))
MAC = Machine(platform="darwin", cpus=8, mps=True)
TPU_HOST = Machine(cpus=8, tpu=Tpu(chips=8, kind="v5e"))
CPU_TORCH = Torch(version="2.13.0+cpu", accelerators=frozenset())


def plan(machine: Machine, **settings: object) -> Plan:
    return make_plan(LaunchSpec(**settings), machine)  # type: ignore[arg-type]


def refusal(machine: Machine, **settings: object) -> str:
    with pytest.raises(PlanError) as caught:
        plan(machine, **settings)
    return str(caught.value)


def devices(made: Plan) -> list[str]:
    return [seat.device for seat in made.seats]


# ---------------------------------------------------------------- properties
machines = st.builds(
    Machine,
    platform=st.sampled_from(["linux", "darwin", "win32"]),
    place=st.sampled_from([("terminal",), ("colab", "jupyter"), ("kaggle", "jupyter")]),
    cpus=st.integers(1, 128),
    available_memory_bytes=st.none() | st.integers(0, 512 * GB),
    shm_bytes=st.none() | st.integers(0, 64 * GB),
    gpus=st.integers(0, 8).map(lambda n: gpus(*["NVIDIA T4"] * n, capability=(7, 5))),
    hidden_gpus=st.integers(0, 8),
    mps=st.booleans(),
    xpus=st.integers(0, 4),
    tpu=st.none() | st.builds(Tpu, chips=st.integers(1, 8)),
    torch=st.sampled_from([None, Torch(), CPU_TORCH]),
    has_torch_xla=st.booleans(),
)
specs = st.builds(
    LaunchSpec,
    hardware=st.sampled_from(["auto", "auto", "cpu", "cuda", "mps", "xpu", "tpu"]),
    num_processes=st.none() | st.integers(1, 16),
    mixed_precision=st.sampled_from(["no", "no", "fp16", "bf16", "fp8"]),
    start_method=st.sampled_from(["auto", "auto", "template", "fork", "spawn", "inline"]),
    threads_per_rank=st.none() | st.integers(1, 8),
    num_nodes=st.sampled_from([1, 1, 1, 2]),
)


def planned(spec: LaunchSpec, machine: Machine) -> Plan | None:
    """The plan; None where it is refused, in whole sentences."""
    try:
        return make_plan(spec, machine)
    except PlanError as error:
        assert str(error).endswith(".")  # noqa: PT017 - a plan is right as well
        return None


@unhurried
@given(specs, machines)
def test_seats_are_one_world_of_contiguous_ranks(spec, machine):
    if made := planned(spec, machine):
        size = len(made.seats)
        assert [seat.rank for seat in made.seats] == list(range(size))
        assert [seat.local_rank for seat in made.seats] == list(range(size))
        assert {(s.world_size, s.local_world_size) for s in made.seats} == {(size, size)}
        assert {(s.node_rank, s.num_nodes) for s in made.seats} == {(0, 1)}


@unhurried
@given(specs, machines)
def test_asked_for_n_is_n_or_a_refusal(spec, machine):
    made = planned(spec, machine)
    if made and spec.num_processes:
        assert len(made.seats) == spec.num_processes


@unhurried
@given(specs, machines)
def test_no_two_workers_share_an_accelerator(spec, machine):
    if made := planned(spec, machine):
        accelerators = [device for device in devices(made) if device != "cpu"]
        assert len(accelerators) == len(set(accelerators))


@unhurried
@given(specs, machines)
def test_shared_out_threads_never_exceed_the_cpus(spec, machine):
    made = planned(replace(spec, threads_per_rank=None), machine)
    if made:
        threads = sum(seat.num_threads for seat in made.seats)
        assert threads <= max(machine.cpus, len(made.seats))


@unhurried
@given(specs, machines, st.sampled_from([("colab", "jupyter"), ("kaggle",), ("slurm",)]))
def test_the_place_changes_no_plan(spec, machine, place):
    assert planned(spec, machine) == planned(spec, replace(machine, place=place))


@unhurried
@given(specs, machines)
def test_nothing_in_a_plan_is_left_to_decide(spec, machine):
    if made := planned(spec, machine):
        assert made.start_method in ("template", "fork", "spawn", "inline")
        assert made.banner.endswith(".")
        assert all(note.endswith(".") for note in made.notes)
        assert made.settles is (made.seats[0].device != "cpu")


# ---------------------------------------------------------------- hardware and counts
def test_without_a_number_every_gpu_gets_a_worker():
    assert devices(plan(EIGHT_H100)) == [f"cuda:{i}" for i in range(8)]


def test_without_a_number_the_cpu_gets_one_worker():
    assert devices(plan(LAPTOP)) == ["cpu"]


def test_a_number_takes_the_first_gpus():
    assert devices(plan(EIGHT_H100, num_processes=3)) == ["cuda:0", "cuda:1", "cuda:2"]


def test_a_number_without_gpus_is_that_many_cpu_processes():
    assert devices(plan(LAPTOP, num_processes=4)) == ["cpu"] * 4


@pytest.mark.parametrize("place", [("colab", "jupyter"), ("kaggle", "jupyter"), ("terminal",)])
def test_two_asked_of_a_cpu_are_one_world_of_two_wherever_it_seems_to_be(place):
    made = plan(replace(LAPTOP, place=place), num_processes=2)
    assert [(seat.rank, seat.world_size) for seat in made.seats] == [(0, 2), (1, 2)]
    assert made.banner == "Launching on 2 CPU processes, 4 threads each."


def test_the_cpu_can_be_asked_for_on_a_machine_with_gpus():
    made = plan(TWO_T4, hardware="cpu", num_processes=4)
    assert devices(made) == ["cpu"] * 4
    assert made.notes == ()


def test_intel_gpus_are_used_through_xccl():
    made = plan(Machine(xpus=2))
    assert [(s.device, s.backend) for s in made.seats] == [
        ("xpu:0", "xpu:xccl,cpu:gloo"),
        ("xpu:1", "xpu:xccl,cpu:gloo"),
    ]


def test_a_mac_trains_one_worker_on_its_gpu():
    made = plan(MAC)
    assert [(s.device, s.backend) for s in made.seats] == [("mps", "gloo")]
    assert made.banner == "Launching on 1 Apple GPU."


def test_several_workers_on_a_mac_use_its_cpu_and_it_is_said():
    made = plan(MAC, num_processes=2)
    assert devices(made) == ["cpu", "cpu"]
    assert made.notes == ("The one Apple GPU cannot be shared by 2 workers, so they use the CPU.",)


@pytest.mark.parametrize(
    ("machine", "backend"),
    [
        (LAPTOP, "gloo"),
        (TWO_T4, "cuda:nccl,cpu:gloo"),
    ],
)
def test_the_backend_gathers_tensors_of_the_device_and_of_the_cpu(machine, backend):
    assert {seat.backend for seat in plan(machine).seats} == {backend}


def test_accelerators_are_waited_for_and_cpus_are_not():
    assert plan(TWO_T4).settles is True
    assert plan(MAC).settles is True
    assert plan(LAPTOP).settles is False


def test_what_was_asked_reaches_every_seat():
    made = plan(TWO_T4, mixed_precision="fp16", gradient_accumulation_steps=4)
    assert {(s.mixed_precision, s.gradient_accumulation_steps) for s in made.seats} == {("fp16", 4)}


def test_every_hardware_that_can_be_asked_for_is_a_row():
    assert {kind.name for kind in KINDS} == {"cpu", "cuda", "mps", "xpu", "tpu"}


# ---------------------------------------------------------------- start methods and threads
@pytest.mark.parametrize(
    ("platform", "method"), [("linux", "template"), ("darwin", "template"), ("win32", "inline")]
)
def test_the_start_method_follows_the_platform(platform, method):
    assert plan(Machine(platform=platform)).start_method == method


@pytest.mark.parametrize("method", ["template", "fork", "spawn", "inline"])
def test_a_start_method_that_was_asked_for_stays(method):
    assert plan(LAPTOP, start_method=method).start_method == method


def test_inline_without_a_number_is_one_worker_even_with_many_gpus():
    made = plan(EIGHT_H100, start_method="inline")
    assert devices(made) == ["cuda:0"]
    assert made.banner == "Running in this kernel on 1 GPU (NVIDIA H100)."


@pytest.mark.parametrize(("count", "threads"), [(1, 8), (2, 4), (3, 2), (8, 1), (20, 1)])
def test_cpus_are_shared_out_over_the_ranks(count, threads):
    made = plan(LAPTOP, num_processes=count)
    assert {seat.num_threads for seat in made.seats} == {threads}


def test_threads_that_were_asked_for_stay():
    assert plan(LAPTOP, num_processes=2, threads_per_rank=7).seats[0].num_threads == 7


def test_workers_forked_from_the_kernel_have_one_thread_and_it_is_said_when_more_were_asked():
    assert plan(LAPTOP, start_method="fork").seats[0].num_threads == 1
    assert plan(LAPTOP, start_method="fork").notes == ()
    made = plan(LAPTOP, start_method="fork", threads_per_rank=4)
    assert made.seats[0].num_threads == 1
    assert made.notes == (
        "threads_per_rank=4 is not used: workers forked from the kernel hang with more than one"
        " thread once the kernel has computed. start_method='template' has no such limit.",
    )


# ---------------------------------------------------------------- banners
@pytest.mark.parametrize(
    ("machine", "settings", "banner"),
    [
        (Machine(cpus=2), {"num_processes": 2}, "Launching on 2 CPU processes, 1 thread each."),
        (Machine(cpus=2), {}, "Launching on 1 CPU process, 2 threads."),
        (TWO_T4, {}, "Launching on 2 GPUs (NVIDIA T4)."),
        (TWO_T4, {"num_processes": 1}, "Launching on 1 GPU (NVIDIA T4)."),
        (
            Machine(gpus=gpus("NVIDIA T4", "NVIDIA L4", "NVIDIA T4")),
            {},
            "Launching on 3 GPUs (2 × NVIDIA T4, NVIDIA L4).",
        ),
        (Machine(xpus=2), {}, "Launching on 2 Intel GPUs."),
        (LAPTOP, {"start_method": "inline"}, "Running in this kernel on 1 CPU process, 8 threads."),
    ],
)
def test_the_banner_says_where_it_trains(machine, settings, banner):
    assert plan(machine, **settings).banner == banner


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("machine", "settings", "sentence"),
    [
        pytest.param(
            TWO_T4,
            {"num_processes": 4},
            "num_processes=4, but this machine has 2 GPUs (NVIDIA T4)."
            " Ask for 1 to 2, or use hardware='cpu'.",
            id="more workers than GPUs",
        ),
        pytest.param(
            Machine(gpus=gpus("NVIDIA T4"), hidden_gpus=3),
            {"num_processes": 2},
            "num_processes=2, but this machine has 1 GPU (NVIDIA T4; CUDA_VISIBLE_DEVICES hides"
            " 3 GPUs). Ask for 1, or use hardware='cpu'.",
            id="more workers than visible GPUs",
        ),
        pytest.param(
            Machine(xpus=1),
            {"num_processes": 2},
            "num_processes=2, but this machine has 1 Intel GPU. Ask for 1, or use hardware='cpu'.",
            id="more workers than Intel GPUs",
        ),
        pytest.param(
            MAC,
            {"num_processes": 2, "hardware": "mps"},
            "num_processes=2, but this machine has 1 Apple GPU. Ask for 1, or use hardware='cpu'.",
            id="several workers on a Mac's GPU",
        ),
        pytest.param(
            LAPTOP,
            {"hardware": "cuda"},
            "hardware='cuda', but this machine has no GPU. Use hardware='auto' or 'cpu'.",
            id="no GPU",
        ),
        pytest.param(
            Machine(hidden_gpus=2),
            {"hardware": "cuda", "num_processes": 2},
            "hardware='cuda', but this machine has no GPU: CUDA_VISIBLE_DEVICES hides 2 GPUs."
            " Use hardware='auto' or 'cpu'.",
            id="no visible GPU",
        ),
        pytest.param(
            LAPTOP,
            {"hardware": "mps"},
            "hardware='mps', but this machine has no Apple GPU. Use hardware='auto' or 'cpu'.",
            id="no Mac",
        ),
        pytest.param(
            LAPTOP,
            {"hardware": "tpu"},
            "hardware='tpu', but this machine has no TPU chip. Use hardware='auto' or 'cpu'.",
            id="no TPU",
        ),
        pytest.param(
            TPU_HOST,
            {"hardware": "tpu"},
            "hardware='tpu', and this machine has 8 TPU chips (v5e), but torch_xla is not"
            " installed. Install the torch_xla of your torch's version (`%pip install torch_xla`),"
            " or use hardware='cpu'.",
            id="TPU without torch_xla",
        ),
        pytest.param(
            replace(TPU_HOST, has_torch_xla=True),
            {"hardware": "tpu"},
            "hardware='tpu', and this machine has 8 TPU chips (v5e), but this version cannot"
            " launch on TPUs yet. Use hardware='cpu'.",
            id="TPU not yet",
        ),
        pytest.param(
            replace(TWO_T4, torch=CPU_TORCH),
            {"hardware": "cuda"},
            "hardware='cuda', but the installed torch 2.13.0+cpu is not built for it."
            " Install one that is (see pytorch.org), or use hardware='cpu'.",
            id="torch without CUDA",
        ),
        pytest.param(
            replace(LAPTOP, torch=None),
            {},
            "torch is not installed in this kernel's Python, and every worker needs it."
            " Run `%pip install torch` and restart the kernel.",
            id="no torch",
        ),
        pytest.param(
            LAPTOP,
            {"mixed_precision": "fp16", "num_processes": 2},
            "mixed_precision='fp16', but this would train on 2 CPU processes, which cannot compute"
            " in fp16. Use mixed_precision='bf16' or 'no'.",
            id="fp16 on the CPU",
        ),
        pytest.param(
            MAC,
            {"mixed_precision": "fp8"},
            "mixed_precision='fp8', but this would train on 1 Apple GPU, which cannot compute in"
            " fp8. Use mixed_precision='bf16' or 'no'.",
            id="fp8 on a Mac",
        ),
        pytest.param(
            TWO_T4,
            {"mixed_precision": "fp8"},
            "mixed_precision='fp8' needs compute capability 8.9 or higher, but GPU 0 (NVIDIA T4)"
            " has 7.5. Use mixed_precision='bf16' or 'fp16'.",
            id="fp8 on an old GPU",
        ),
        pytest.param(
            LAPTOP,
            {"node_rank": 1},
            "node_rank=1, but with num_nodes=1 there is only 0."
            " Give each machine its own node_rank, counted from 0.",
            id="node rank of one",
        ),
        pytest.param(
            LAPTOP,
            {"node_rank": 3, "num_nodes": 3},
            "node_rank=3, but with num_nodes=3 there is 0 to 2."
            " Give each machine its own node_rank, counted from 0.",
            id="node rank of several",
        ),
        pytest.param(
            LAPTOP,
            {"num_nodes": 2, "node_rank": 1, "master_addr": "10.0.0.1"},
            "num_nodes=2 (node_rank=1, master_addr='10.0.0.1'), but this version launches on one"
            " machine only: several machines come with an engine such as SLURM or Ray, which it"
            " does not have yet. Use num_nodes=1.",
            id="several machines",
        ),
        pytest.param(
            LAPTOP,
            {"max_restarts": 2},
            "max_restarts=2, but this version starts a run once."
            " Leave it out, and launch again from the newest checkpoint after a failure.",
            id="restarts",
        ),
        pytest.param(
            Machine(platform="darwin"),
            {"start_method": "fork"},
            "start_method='fork', but macOS's own libraries do not survive a fork of the kernel."
            " Use start_method='auto' or 'spawn'.",
            id="fork on a Mac",
        ),
        pytest.param(
            Machine(platform="win32"),
            {"num_processes": 2},
            "This would start 2 worker processes, which this version does on Linux and macOS only."
            " On Windows, use num_processes=1, which runs in the kernel itself, or work in WSL.",
            id="workers on Windows",
        ),
        pytest.param(
            LAPTOP,
            {"start_method": "inline", "num_processes": 2},
            "start_method='inline' runs in the kernel itself, as one process, but num_processes=2."
            " Leave num_processes out, or use start_method='auto'.",
            id="several workers inline",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_what_was_asked_what_is_so_and_what_to_do(machine, settings, sentence):
    assert refusal(machine, **settings) == sentence


def test_a_spec_that_cannot_be_on_any_machine_is_refused_as_such():
    with pytest.raises(SpecError, match="num_processes=0 is too low"):
        plan(LAPTOP, num_processes=0)


def test_fp8_is_taken_where_the_gpu_knows_it_or_nobody_can_tell():
    assert plan(EIGHT_H100, mixed_precision="fp8").seats[0].mixed_precision == "fp8"
    unknown = Machine(gpus=gpus("NVIDIA X", capability=None))
    assert plan(unknown, mixed_precision="fp8").seats[0].mixed_precision == "fp8"


def test_only_the_gpus_that_are_used_must_know_fp8():
    mixed = Machine(gpus=(Gpu(index=0, capability=(9, 0)), Gpu(index=1, capability=(7, 5))))
    assert len(plan(mixed, mixed_precision="fp8", num_processes=1).seats) == 1
    assert "GPU 1 (NVIDIA GPU) has 7.5" in refusal(mixed, mixed_precision="fp8")


# ---------------------------------------------------------------- notes
@pytest.mark.parametrize(
    ("machine", "settings", "note"),
    [
        pytest.param(
            replace(TWO_T4, torch=CPU_TORCH),
            {},
            "This machine has 2 GPUs, but the installed torch 2.13.0+cpu is not built for it.",
            id="torch without CUDA",
        ),
        pytest.param(
            TPU_HOST,
            {},
            "The 8 TPU chips (v5e) are not used: this version cannot launch on TPUs yet.",
            id="TPU not yet",
        ),
        pytest.param(
            Machine(hidden_gpus=1),
            {},
            "No GPU is used: CUDA_VISIBLE_DEVICES hides 1 GPU.",
            id="all GPUs hidden",
        ),
        pytest.param(
            Machine(cpus=2),
            {"num_processes": 4},
            "4 CPU processes share 2 CPUs: fine for a try, slower than num_processes=2 for"
            " training.",
            id="more processes than CPUs",
        ),
        pytest.param(
            replace(LAPTOP, available_memory_bytes=GB),
            {"num_processes": 8},
            "8 workers for 1.0 GB of free memory, 128 MB each: one that runs out of it will be"
            " killed.",
            id="little memory",
        ),
        pytest.param(
            replace(LAPTOP, shm_bytes=64 * 2**20),
            {},
            "Only 64 MB (67108864 bytes) are free in /dev/shm; DataLoader workers that fill it die"
            " by a bus error. Start the container with --shm-size=2g, or use num_workers=0.",
            id="small shared memory",
        ),
        pytest.param(
            TWO_T4,
            {"mixed_precision": "bf16"},
            "bf16 is emulated, and slow, below compute capability 8.0: GPU 0 (NVIDIA T4) has 7.5."
            " Try fp16.",
            id="bf16 on an old GPU",
        ),
        pytest.param(
            LAPTOP,
            {"rdzv_backend": "c10d", "rdzv_endpoint": "10.0.0.1:29400"},
            "Not used on one machine, whose workers meet on the loopback address:"
            " rdzv_backend='c10d', rdzv_endpoint='10.0.0.1:29400'.",
            id="rendezvous of several machines",
        ),
    ],
)
def test_what_one_should_know_is_the_one_note(machine, settings, note):
    assert plan(machine, **settings).notes == (note,)


@pytest.mark.parametrize(
    ("machine", "settings"),
    [
        (LAPTOP, {"num_processes": 8}),
        (replace(LAPTOP, shm_bytes=512 * 2**20), {}),
        (replace(LAPTOP, available_memory_bytes=2 * GB), {"num_processes": 8}),
        (EIGHT_H100, {"mixed_precision": "bf16"}),
        (Machine(gpus=gpus("NVIDIA X", capability=None)), {"mixed_precision": "bf16"}),
        (Machine(gpus=gpus("NVIDIA T4"), hidden_gpus=1), {}),
        (Machine(hidden_gpus=1), {"hardware": "cpu"}),
        (TPU_HOST, {"hardware": "cpu"}),
        (replace(TWO_T4, tpu=Tpu(chips=8)), {}),
    ],
)
def test_a_launch_that_is_as_it_should_be_has_no_note(machine, settings):
    assert plan(machine, **settings).notes == ()
