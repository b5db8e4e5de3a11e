"""The start methods: a table, so that nothing else asks which one it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nb_accelerate.launch.children import fork_crew, spawn_crew
from nb_accelerate.launch.template import template_of_this_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nb_accelerate.launch.crew import Crew
    from nb_accelerate.plan import Plan

__all__ = ["METHODS", "StartMethod"]


@dataclass(frozen=True, slots=True)
class StartMethod:
    """One way to get processes for seats."""

    ships_the_call: bool
    """The function travels by value; else the processes have it in memory already."""
    start: Callable[[Plan, object, int], Crew]
    """(plan, call, port or 0) → crew"""
    was_running: Callable[[], bool] = lambda: False
    """Whether what starts the ranks is there already: it may have been ended unnoticed."""
    prepare: Callable[[Crew], None] = lambda _crew: None
    """Make ranks ahead for a launch like the one whose crew this was."""


METHODS: Mapping[str, StartMethod] = {
    "template": StartMethod(
        ships_the_call=True,
        start=lambda plan, _, port: template_of_this_kernel().crew(plan.seats, port),
        was_running=lambda: template_of_this_kernel().pid is not None,
        prepare=lambda crew: template_of_this_kernel().prepare(crew),
    ),
    "spawn": StartMethod(
        ships_the_call=True, start=lambda plan, _, port: spawn_crew(plan.seats, port)
    ),
    "fork": StartMethod(
        ships_the_call=False, start=lambda plan, call, port: fork_crew(plan.seats, call, port)
    ),
}
