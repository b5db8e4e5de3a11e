"""The decisions: which hardware, how many workers, started how. Nothing is refused here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nb_accelerate.plan.kinds import CPU, CUDA, KINDS, torch_knows

if TYPE_CHECKING:
    from collections.abc import Callable

    from nb_accelerate.machine import Gpu, Machine
    from nb_accelerate.plan.kinds import Kind
    from nb_accelerate.spec import LaunchSpec

__all__ = ["Draft", "Rule", "drafted"]


@dataclass(frozen=True, slots=True)
class Draft:
    """The decisions, before anything has been refused."""

    spec: LaunchSpec
    machine: Machine
    kind: Kind
    count: int
    method: str

    @property
    def devices(self) -> int:
        """How many there are of its kind."""
        return self.kind.devices(self.machine)

    @property
    def chosen(self) -> tuple[Gpu, ...]:
        """The GPUs that it uses."""
        return self.machine.gpus[: self.count] if self.kind is CUDA else ()


Rule: TypeAlias = "Callable[[Draft], str | None]"


def drafted(spec: LaunchSpec, machine: Machine) -> Draft:
    """Decide, for a spec that has been checked, as if all were possible."""
    kind = _kind(spec, machine)
    alone = spec.start_method == "inline" or kind is CPU
    count = spec.num_processes or (1 if alone else max(1, kind.devices(machine)))
    return Draft(spec, machine, kind, count, _method(spec, machine))


def _kind(spec: LaunchSpec, machine: Machine) -> Kind:
    """The row that was asked for; "auto": the best one that can be used here."""
    if spec.hardware != "auto":
        return next(kind for kind in KINDS if kind.name == spec.hardware)
    return next(kind for kind in KINDS if _fits(kind, spec, machine))


def _fits(kind: Kind, spec: LaunchSpec, machine: Machine) -> bool:
    """Whether "auto" may take it."""
    crowded = kind.single and (spec.num_processes or 1) > 1
    return kind.ready and kind.devices(machine) > 0 and torch_knows(kind, machine) and not crowded


def _method(spec: LaunchSpec, machine: Machine) -> str:
    if spec.start_method != "auto":
        return spec.start_method
    if machine.platform == "win32" and (spec.num_processes or 1) == 1:
        return "inline"  # it needs no worker process, and there are none on Windows
    return "template"
