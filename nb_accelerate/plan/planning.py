"""A request and a machine become a plan, or a sentence that says why they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nb_accelerate.errors import PlanError
from nb_accelerate.plan.draft import drafted
from nb_accelerate.plan.kinds import CPU
from nb_accelerate.plan.notes import NOTES
from nb_accelerate.plan.phrases import counted, gpu_names
from nb_accelerate.plan.refusals import REFUSALS
from nb_accelerate.plan.seats import Plan, Seat
from nb_accelerate.spec import checked

if TYPE_CHECKING:
    from nb_accelerate.machine import Machine
    from nb_accelerate.plan.draft import Draft
    from nb_accelerate.spec import LaunchSpec

__all__ = ["make_plan"]


def make_plan(spec: LaunchSpec, machine: Machine) -> Plan:
    """Decide all that a launch needs, or say why it cannot be.

    `num_processes=None` is one worker per device of the best hardware, one on the CPU. A number is
    that many workers in one world, or an error: never fewer, never several worlds.

    Raises:
        SpecError: a value that cannot be on any machine.
        PlanError: a request that this machine cannot fulfil.
    """
    draft = drafted(checked(spec), machine)
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


def _seat(draft: Draft, rank: int) -> Seat:
    return Seat(
        rank=rank,
        local_rank=rank,
        world_size=draft.count,
        local_world_size=draft.count,
        device=draft.kind.device.format(rank),
        backend=draft.kind.backend,
        mixed_precision=draft.spec.mixed_precision,
        gradient_accumulation_steps=draft.spec.gradient_accumulation_steps,
        num_threads=_threads(draft),
    )


def _threads(draft: Draft) -> int:
    # A forked copy of the kernel inherits an OpenMP pool without its threads: once the kernel has
    # computed, the copy's first parallel operation waits for them for ever.
    if draft.method == "fork":
        return 1
    return draft.spec.threads_per_rank or max(1, draft.machine.cpus // draft.count)


def _banner(draft: Draft) -> str:
    where = "Running in this kernel" if draft.method == "inline" else "Launching"
    if draft.kind is CPU:
        threads = counted(_threads(draft), "thread") + (" each" if draft.count > 1 else "")
        return f"{where} on {counted(draft.count, 'CPU process')}, {threads}."
    names = f" ({gpu_names(draft.chosen)})" if draft.chosen else ""
    return f"{where} on {counted(draft.count, draft.kind.noun)}{names}."
