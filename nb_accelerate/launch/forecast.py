"""Forecast: which ranks the first launch of a kernel will most likely want."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nb_accelerate.errors import NbAccelerateError
from nb_accelerate.launch.ledger import newest_run
from nb_accelerate.plan import make_plan
from nb_accelerate.spec import LaunchSpec

if TYPE_CHECKING:
    from pathlib import Path

    from nb_accelerate.machine import Machine
    from nb_accelerate.plan import Seat

__all__ = ["likely_seats"]


def likely_seats(root: Path, machine: Machine) -> tuple[Seat, ...]:
    """The seats of the user's newest run, whose folder lies in `root`; none if that is no guide.

    On the CPU only: ranks that wait for a launch which may never come must not hold a device.
    """
    run = newest_run(root)
    asked = run.spec.get("spec") if run else None
    if not isinstance(asked, dict):
        return ()
    try:
        plan = make_plan(LaunchSpec.from_settings(asked), machine)
    except NbAccelerateError:  # of another version, or of a machine with more devices
        return ()
    ahead = plan.start_method == "template" and all(s.device == "cpu" for s in plan.seats)
    return plan.seats if ahead else ()
