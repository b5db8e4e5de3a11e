"""make_plan: a request and a machine become seats. Pure: every rule and every refusal lives here.

    make_plan  decides all that a launch needs, or says why it cannot be
    Plan       what a launch will do: a Seat per rank, the banner, the notes
    KINDS      what differs between kinds of hardware, as values
    REFUSALS   what cannot be: each rule gives a sentence or None; the first sentence is the error
    NOTES      what the user should know: each rule gives a sentence or None

Reading order: seats (what comes out), planning (make_plan), kinds, draft (the decisions), refusals,
notes, phrases.
"""

from __future__ import annotations

from nb_accelerate.plan.kinds import KINDS, Kind
from nb_accelerate.plan.notes import NOTES
from nb_accelerate.plan.planning import make_plan
from nb_accelerate.plan.refusals import REFUSALS
from nb_accelerate.plan.seats import Plan, Seat

__all__ = ["KINDS", "NOTES", "REFUSALS", "Kind", "Plan", "Seat", "make_plan"]
