"""make_plan: a request and a machine become seats. Pure: every rule and every refusal lives here.

KINDS      what differs between kinds of hardware, as values
REFUSALS   what cannot be: each rule gives a sentence or None; the first sentence is the error
NOTES      what the user should know: each rule gives a sentence or None
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from .errors import PlanError
from .spec import LaunchSpec, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from .machine import Gpu, Machine

__all__ = ["KINDS", "Kind", "Plan", "Seat", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One worker's share of a plan: nothing left to decide."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int = 0
    num_nodes: int = 1
    device: str = "cpu"
    """A torch device, such as "cuda:1"."""
    backend: str = "gloo"
    """For torch.distributed, such as "gloo" or "cuda:nccl,cpu:gloo"."""
    mixed_precision: str = "no"
    gradient_accumulation_steps: int = 1
    num_threads: int = 1
    """Threads that one operation of this rank may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a launch will do."""

    seats: tuple[Seat, ...]
    start_method: str
    """A row of launch.methods: "template", "fork", "spawn" or "inline"."""
    settles: bool = False
    """Wait for the processes' end before returning: they hold device memory that the next needs."""
    banner: str = ""
    notes: tuple[str, ...] = ()
    """What the user should know before it starts, such as a small /dev/shm."""


def make_plan(spec: LaunchSpec, machine: Machine) -> Plan:
    """Decide all that a launch needs, or say why it cannot be.

    `num_processes=None` is one worker per device of the best hardware, one on the CPU. A number is
    that many workers in one world, or an error: never fewer, never several worlds.

    Raises:
        SpecError: a value that cannot be on any machine.
        PlanError: a request that this machine cannot fulfil.
    """
    draft = _drafted(checked(spec), machine)
    for refusal in REFUSALS:
        if sentence := refusal(draft):
            raise PlanError(sentence)
    return Plan(
        seats=tuple(_seat(draft, rank) for rank in range(draft.count)),
        start_method=draft.method,
        settles=draft.kind.settles,
        banner=_banner(draft),
        notes=tuple(sentence for note in NOTES if (sentence := note(draft))),
    )


# ---------------------------------------------------------------- kinds of hardware
@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a launch needs to know of one kind of hardware."""

    name: str
    """As torch calls its devices and the user asks for it."""
    noun: str
    """What one of them is called: "GPU"."""
    devices: Callable[[Machine], int]
    """How many there are; each holds one worker, save the CPU, which holds any number."""
    device: str
    """A worker's torch device; "{}" is its local rank."""
    backend: str
    """For torch.distributed: the device's tensors, and the CPU's beside them."""
    precisions: tuple[str, ...]
    settles: bool = True
    single: bool = False
    """No machine has more than one, so "auto" puts several workers elsewhere."""
    ready: bool = True
    """This version can launch on it."""


CPU = Kind(
    name="cpu",
    noun="CPU process",
    devices=lambda _machine: 1,
    device="cpu",
    backend="gloo",
    precisions=("no", "bf16"),
    settles=False,
)
CUDA = Kind(
    name="cuda",
    noun="GPU",
    devices=lambda machine: len(machine.gpus),
    device="cuda:{}",
    backend="cuda:nccl,cpu:gloo",
    precisions=("no", "fp16", "bf16", "fp8"),
)
TPU = Kind(
    name="tpu",
    noun="TPU chip",
    devices=lambda machine: machine.tpu.chips if machine.tpu else 0,
    device="xla:{}",
    backend="xla",
    precisions=("no", "bf16"),
    ready=False,
)
XPU = Kind(
    name="xpu",
    noun="Intel GPU",
    devices=lambda machine: machine.xpus,
    device="xpu:{}",
    backend="xpu:xccl,cpu:gloo",
    precisions=("no", "fp16", "bf16"),
)
MPS = Kind(
    name="mps",
    noun="Apple GPU",
    devices=lambda machine: int(machine.mps),
    device="mps",
    backend="gloo",
    precisions=("no", "fp16", "bf16"),
    single=True,
)

KINDS: tuple[Kind, ...] = (CUDA, TPU, XPU, MPS, CPU)
"""The best first."""


# ---------------------------------------------------------------- the decisions
@dataclass(frozen=True, slots=True)
class _Draft:
    """The decisions, before anything has been refused."""

    spec: LaunchSpec
    machine: Machine
    kind: Kind
    count: int
    method: str

    @property
    def devices(self) -> int:
        return self.kind.devices(self.machine)

    @property
    def chosen(self) -> tuple[Gpu, ...]:
        """The GPUs that it uses."""
        return self.machine.gpus[: self.count] if self.kind is CUDA else ()


def _drafted(spec: LaunchSpec, machine: Machine) -> _Draft:
    kind = _kind(spec, machine)
    alone = spec.start_method == "inline" or kind is CPU
    count = spec.num_processes or (1 if alone else max(1, kind.devices(machine)))
    return _Draft(spec, machine, kind, count, _method(spec, machine))


def _kind(spec: LaunchSpec, machine: Machine) -> Kind:
    """The row that was asked for; "auto": the best one that can be used here."""
    if spec.hardware != "auto":
        return next(kind for kind in KINDS if kind.name == spec.hardware)
    return next(kind for kind in KINDS if _fits(kind, spec, machine))


def _fits(kind: Kind, spec: LaunchSpec, machine: Machine) -> bool:
    """Whether "auto" may take it."""
    crowded = kind.single and (spec.num_processes or 1) > 1
    return kind.ready and kind.devices(machine) > 0 and _built(kind, machine) and not crowded


def _built(kind: Kind, machine: Machine) -> bool:
    """Whether the installed torch can compute on it."""
    return machine.torch is None or kind in (CPU, TPU) or kind.name in machine.torch.accelerators


def _method(spec: LaunchSpec, machine: Machine) -> str:
    if spec.start_method != "auto":
        return spec.start_method
    return "spawn" if machine.platform == "win32" else "template"


def _seat(draft: _Draft, rank: int) -> Seat:
    return Seat(
        rank=rank,
        local_rank=rank,
        world_size=draft.count,
        local_world_size=draft.count,
        device=draft.kind.device.format(rank),
        backend=_backend(draft),
        mixed_precision=draft.spec.mixed_precision,
        gradient_accumulation_steps=draft.spec.gradient_accumulation_steps,
        num_threads=_threads(draft),
    )


def _backend(draft: _Draft) -> str:
    # NCCL is not made for Windows; gloo takes CUDA tensors as well.
    return "gloo" if draft.machine.platform == "win32" else draft.kind.backend


def _threads(draft: _Draft) -> int:
    # A forked copy of the kernel inherits an OpenMP pool without its threads: once the kernel has
    # computed, the copy's first parallel operation waits for them for ever.
    if draft.method == "fork":
        return 1
    return draft.spec.threads_per_rank or max(1, draft.machine.cpus // draft.count)


def _banner(draft: _Draft) -> str:
    where = "Running in this kernel" if draft.method == "inline" else "Launching"
    if draft.kind is CPU:
        threads = _counted(_threads(draft), "thread") + (" each" if draft.count > 1 else "")
        return f"{where} on {_counted(draft.count, 'CPU process')}, {threads}."
    names = f" ({_gpu_names(draft.chosen)})" if draft.chosen else ""
    return f"{where} on {_counted(draft.count, draft.kind.noun)}{names}."


# ---------------------------------------------------------------- what cannot be
def _node_out_of_range(draft: _Draft) -> str | None:
    spec = draft.spec
    if spec.node_rank < spec.num_nodes:
        return None
    ranks = "only 0" if spec.num_nodes == 1 else f"0 to {spec.num_nodes - 1}"
    return (
        f"node_rank={spec.node_rank}, but with num_nodes={spec.num_nodes} there is {ranks}."
        f" Give each machine its own node_rank, counted from 0."
    )


def _several_nodes(draft: _Draft) -> str | None:
    spec = draft.spec
    if spec.num_nodes == 1:
        return None
    return (
        f"num_nodes={spec.num_nodes} (node_rank={spec.node_rank},"
        f" master_addr={spec.master_addr!r}), but this version launches on one machine only:"
        " several machines come with an engine such as SLURM or Ray, which it does not have yet."
        " Use num_nodes=1."
    )


def _restarts(draft: _Draft) -> str | None:
    if not draft.spec.max_restarts:
        return None
    return (
        f"max_restarts={draft.spec.max_restarts}, but this version starts a run once."
        " Leave it out, and launch again from the newest checkpoint after a failure."
    )


def _no_torch(draft: _Draft) -> str | None:
    if draft.machine.has_torch:
        return None
    return (
        "torch is not installed in this kernel's Python, and every worker needs it."
        " Run `%pip install torch` and restart the kernel."
    )


def _no_such_device(draft: _Draft) -> str | None:
    if draft.devices:
        return None
    return (
        f"hardware={draft.kind.name!r}, but this machine has no {draft.kind.noun}"
        f"{_hidden(draft.machine, draft.kind)}. Use hardware='auto' or 'cpu'."
    )


def _no_torch_xla(draft: _Draft) -> str | None:
    if draft.kind is not TPU or draft.machine.has_torch_xla:
        return None
    return (
        f"hardware='tpu', and this machine has {_chips(draft.machine)}, but torch_xla is not"
        " installed. Install the torch_xla of your torch's version (`%pip install torch_xla`),"
        " or use hardware='cpu'."
    )


def _not_ready(draft: _Draft) -> str | None:
    if draft.kind.ready:
        return None
    return (
        f"hardware={draft.kind.name!r}, and this machine has {_chips(draft.machine)}, but this"
        " version cannot launch on TPUs yet. Use hardware='cpu'."
    )


def _torch_not_built(draft: _Draft) -> str | None:
    if draft.machine.torch is None or _built(draft.kind, draft.machine):
        return None
    return (
        f"hardware={draft.kind.name!r}, but the installed torch {draft.machine.torch.version} is"
        " not built for it. Install one that is (see pytorch.org), or use hardware='cpu'."
    )


def _too_many(draft: _Draft) -> str | None:
    if draft.kind is CPU or draft.count <= draft.devices:
        return None
    names = "; ".join(filter(None, (_gpu_names(draft.chosen), _hidden_count(draft.machine))))
    range_ = "1" if draft.devices == 1 else f"1 to {draft.devices}"
    return (
        f"num_processes={draft.count}, but this machine has"
        f" {_counted(draft.devices, draft.kind.noun)}{f' ({names})' if draft.chosen else ''}."
        f" Ask for {range_}, or use hardware='cpu'."
    )


_UNFORKABLE: dict[str, tuple[tuple[str, ...], str]] = {
    "win32": (("fork", "template"), "Windows has no fork"),
    "darwin": (("fork",), "macOS's own libraries do not survive a fork of the kernel"),
}


def _no_fork_here(draft: _Draft) -> str | None:
    methods, why = _UNFORKABLE.get(draft.machine.platform, ((), ""))
    if draft.method not in methods:
        return None
    return f"start_method={draft.method!r}, but {why}. Use start_method='auto' or 'spawn'."


def _crowd_inline(draft: _Draft) -> str | None:
    if draft.method != "inline" or draft.count == 1:
        return None
    return (
        f"start_method='inline' runs in the kernel itself, as one process, but"
        f" num_processes={draft.count}. Leave num_processes out, or use start_method='auto'."
    )


def _precision_unknown_there(draft: _Draft) -> str | None:
    asked, kind = draft.spec.mixed_precision, draft.kind
    if asked in kind.precisions:
        return None
    return (
        f"mixed_precision={asked!r}, but this would train on {_counted(draft.count, kind.noun)},"
        f" which cannot compute in {asked}. Use mixed_precision='bf16' or 'no'."
    )


def _no_float8(draft: _Draft) -> str | None:
    unable = [gpu for gpu in draft.chosen if gpu.float8 is False]
    if draft.spec.mixed_precision != "fp8" or not unable:
        return None
    return (
        f"mixed_precision='fp8' needs compute capability 8.9 or higher, but {_able(unable[0])}."
        " Use mixed_precision='bf16' or 'fp16'."
    )


_Rule: TypeAlias = "Callable[[_Draft], str | None]"

REFUSALS: tuple[_Rule, ...] = (
    _node_out_of_range,
    _several_nodes,
    _restarts,
    _no_torch,
    _no_fork_here,
    _crowd_inline,
    _no_such_device,
    _no_torch_xla,
    _not_ready,
    _torch_not_built,
    _too_many,
    _precision_unknown_there,
    _no_float8,
)


# ---------------------------------------------------------------- what one should know
def _passed_over(draft: _Draft) -> str | None:
    """Better hardware that "auto" could not take, with the reason."""
    better = KINDS[: KINDS.index(draft.kind)] if draft.spec.hardware == "auto" else ()
    there = [kind for kind in better if kind.devices(draft.machine)]
    if not there:
        return None
    return _why_passed(there[0], draft)


def _why_passed(kind: Kind, draft: _Draft) -> str:
    if not kind.ready:
        return f"The {_chips(draft.machine)} are not used: this version cannot launch on TPUs yet."
    if draft.machine.torch and not _built(kind, draft.machine):
        version = draft.machine.torch.version
        have = _counted(kind.devices(draft.machine), kind.noun)
        return f"This machine has {have}, but the installed torch {version} is not built for it."
    return f"The one {kind.noun} cannot be shared by {draft.count} workers, so they use the CPU."


def _hidden_gpus(draft: _Draft) -> str | None:
    if draft.spec.hardware != "auto" or draft.machine.gpus or not draft.machine.hidden_gpus:
        return None
    return f"No GPU is used: {_hidden_count(draft.machine)}."


def _more_than_cpus(draft: _Draft) -> str | None:
    cpus = draft.machine.cpus
    if draft.kind is not CPU or draft.count <= cpus:
        return None
    return (
        f"{draft.count} CPU processes share {_counted(cpus, 'CPU')}: fine for a try, slower than"
        f" num_processes={cpus} for training."
    )


_LITTLE_BYTES = 256 * 2**20
"""Per worker: about what torch itself takes in one."""


def _little_memory(draft: _Draft) -> str | None:
    free = draft.machine.available_memory_bytes
    if free is None or free >= draft.count * _LITTLE_BYTES:
        return None
    return (
        f"{_counted(draft.count, 'worker')} for {_size(free)} of free memory,"
        f" {_size(free // draft.count)} each: one that runs out of it will be killed."
    )


_SMALL_SHM_BYTES = 512 * 2**20


def _small_shm(draft: _Draft) -> str | None:
    free = draft.machine.shm_bytes
    if free is None or free >= _SMALL_SHM_BYTES:
        return None
    return (
        f"Only {_size(free)} ({free} bytes) are free in /dev/shm; DataLoader workers that fill it"
        " die by a bus error. Start the container with --shm-size=2g, or use num_workers=0."
    )


def _slow_bfloat16(draft: _Draft) -> str | None:
    old = [gpu for gpu in draft.chosen if gpu.bfloat16 is False]
    if draft.spec.mixed_precision != "bf16" or not old:
        return None
    return f"bf16 is emulated, and slow, below compute capability 8.0: {_able(old[0])}. Try fp16."


def _threads_of_forked(draft: _Draft) -> str | None:
    asked = draft.spec.threads_per_rank
    if draft.method != "fork" or asked in (None, 1):
        return None
    return (
        f"threads_per_rank={asked} is not used: workers forked from the kernel hang with more than"
        " one thread once the kernel has computed. start_method='template' has no such limit."
    )


def _unused_rendezvous(draft: _Draft) -> str | None:
    names = ("master_addr", "rdzv_backend", "rdzv_endpoint", "rdzv_id")
    spec, plain = draft.spec, LaunchSpec()
    asked = [n for n in names if getattr(spec, n) != getattr(plain, n)]
    if not asked:
        return None
    listed = ", ".join(f"{name}={getattr(spec, name)!r}" for name in asked)
    return f"Not used on one machine, whose workers meet on the loopback address: {listed}."


NOTES: tuple[_Rule, ...] = (
    _passed_over,
    _hidden_gpus,
    _more_than_cpus,
    _little_memory,
    _small_shm,
    _slow_bfloat16,
    _threads_of_forked,
    _unused_rendezvous,
)


# ---------------------------------------------------------------- words
def _counted(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def _gpu_names(gpus: tuple[Gpu, ...]) -> str:
    """Such as "NVIDIA T4", or "2 × NVIDIA T4, NVIDIA L4" of a mixture."""
    counts = Counter(gpu.name for gpu in gpus)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counts.items())


def _able(gpu: Gpu) -> str:
    major, minor = gpu.capability or (0, 0)
    return f"GPU {gpu.index} ({gpu.name}) has {major}.{minor}"


def _chips(machine: Machine) -> str:
    return f"{_counted(machine.tpu.chips, 'TPU chip')} ({machine.tpu.kind})" if machine.tpu else ""


def _hidden_count(machine: Machine) -> str:
    hidden = machine.hidden_gpus
    return f"CUDA_VISIBLE_DEVICES hides {_counted(hidden, 'GPU')}" if hidden else ""


def _hidden(machine: Machine, kind: Kind) -> str:
    return f": {text}" if kind is CUDA and (text := _hidden_count(machine)) else ""


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GB" if number >= 2**30 else f"{number / 2**20:.0f} MB"
