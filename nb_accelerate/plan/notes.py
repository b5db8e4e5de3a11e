"""What the user should know: each rule gives a sentence or None."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nb_accelerate.plan.kinds import CPU, KINDS, torch_knows
from nb_accelerate.plan.phrases import ability, counted, hidden_count, size, tpu_chips
from nb_accelerate.spec import LaunchSpec

if TYPE_CHECKING:
    from nb_accelerate.plan.draft import Draft, Rule
    from nb_accelerate.plan.kinds import Kind

__all__ = ["NOTES"]


def _passed_over(draft: Draft) -> str | None:
    """Better hardware that "auto" could not take, with the reason."""
    better = KINDS[: KINDS.index(draft.kind)] if draft.spec.hardware == "auto" else ()
    there = [kind for kind in better if kind.devices(draft.machine)]
    if not there:
        return None
    return _why_passed(there[0], draft)


def _why_passed(kind: Kind, draft: Draft) -> str:
    if not kind.ready:
        return (
            f"The {tpu_chips(draft.machine)} are not used: this version cannot launch on TPUs yet."
        )
    if draft.machine.torch and not torch_knows(kind, draft.machine):
        version = draft.machine.torch.version
        have = counted(kind.devices(draft.machine), kind.noun)
        return f"This machine has {have}, but the installed torch {version} is not built for it."
    return f"The one {kind.noun} cannot be shared by {draft.count} workers, so they use the CPU."


def _hidden_gpus(draft: Draft) -> str | None:
    if draft.spec.hardware != "auto" or draft.machine.gpus or not draft.machine.hidden_gpus:
        return None
    return f"No GPU is used: {hidden_count(draft.machine)}."


def _more_than_cpus(draft: Draft) -> str | None:
    cpus = draft.machine.cpus
    if draft.kind is not CPU or draft.count <= cpus:
        return None
    return (
        f"{draft.count} CPU processes share {counted(cpus, 'CPU')}: fine for a try, slower than"
        f" num_processes={cpus} for training."
    )


_LITTLE_BYTES = 256 * 2**20
"""Per worker: about what torch itself takes in one."""


def _little_memory(draft: Draft) -> str | None:
    free = draft.machine.available_memory_bytes
    if free is None or free >= draft.count * _LITTLE_BYTES:
        return None
    return (
        f"{counted(draft.count, 'worker')} for {size(free)} of free memory,"
        f" {size(free // draft.count)} each: one that runs out of it will be killed."
    )


_SMALL_SHM_BYTES = 512 * 2**20


def _small_shm(draft: Draft) -> str | None:
    free = draft.machine.shm_bytes
    if free is None or free >= _SMALL_SHM_BYTES:
        return None
    return (
        f"Only {size(free)} ({free} bytes) are free in /dev/shm; DataLoader workers that fill it"
        " die by a bus error. Start the container with --shm-size=2g, or use num_workers=0."
    )


def _slow_bfloat16(draft: Draft) -> str | None:
    old = [gpu for gpu in draft.chosen if gpu.bfloat16 is False]
    if draft.spec.mixed_precision != "bf16" or not old:
        return None
    return f"bf16 is emulated, and slow, below compute capability 8.0: {ability(old[0])}. Try fp16."


def _threads_of_forked(draft: Draft) -> str | None:
    asked = draft.spec.threads_per_rank
    if draft.method != "fork" or asked in (None, 1):
        return None
    return (
        f"threads_per_rank={asked} is not used: workers forked from the kernel hang with more than"
        " one thread once the kernel has computed. start_method='template' has no such limit."
    )


def _unused_rendezvous(draft: Draft) -> str | None:
    names = ("master_addr", "rdzv_backend", "rdzv_endpoint", "rdzv_id")
    spec, plain = draft.spec, LaunchSpec()
    asked = [n for n in names if getattr(spec, n) != getattr(plain, n)]
    if not asked:
        return None
    listed = ", ".join(f"{name}={getattr(spec, name)!r}" for name in asked)
    return f"Not used on one machine, whose workers meet on the loopback address: {listed}."


NOTES: tuple[Rule, ...] = (
    _passed_over,
    _hidden_gpus,
    _more_than_cpus,
    _little_memory,
    _small_shm,
    _slow_bfloat16,
    _threads_of_forked,
    _unused_rendezvous,
)
