"""The story of a failed run: one culprit, its cause, and what the others were doing. Pure."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nb_accelerate.launch.places import place_of
from nb_accelerate.messages import Frame, Raised, Returned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nb_accelerate.launch.standing import Standing

__all__ = ["Culprit", "Died", "LeftFirst", "RaisedFirst", "Scene", "bystanders", "find_culprit"]

# A death is noticed a little later than the echo of it that other ranks raise.
_DEATH_NOTICE_SECONDS = 0.2
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Scene:
    """What the story is told with, besides the ranks themselves."""

    labels: Mapping[str, str]
    memory_bytes: int
    shm_bytes: int | None
    template_story: str = ""
    """Why the template is gone, if it is."""


@dataclass(frozen=True, slots=True)
class Died:
    """A rank ended without an answer."""

    rank: int
    signal: int | None
    exit_code: int | None
    cause: str


@dataclass(frozen=True, slots=True)
class RaisedFirst:
    """A rank raised."""

    raised: Raised


@dataclass(frozen=True, slots=True)
class LeftFirst:
    """Ranks returned while others wait for them."""

    ranks: tuple[int, ...]
    waiting: Raised | None
    """The first that was let down, where it said so."""


Culprit: TypeAlias = Died | RaisedFirst | LeftFirst


def find_culprit(standings: Sequence[Standing], scene: Scene) -> Culprit | None:
    """The first real cause by time; None when every rank has returned.

    A death without a Python exception, and an exception that is not the echo of a peer's end, are
    causes; a rank that returned while others then lost it is one; an echo alone is the last resort.
    What ranks did after we signalled them is no cause.
    """
    deaths = [s for s in standings if s.answer is None and s.is_gone and not s.signalled]
    raises = [
        s.answer
        for s in standings
        if isinstance(s.answer, Raised) and not (s.signalled and _is_interrupt(s.answer))
    ]
    causes: list[tuple[float, Culprit]] = [
        (_time_of_death(s) - _DEATH_NOTICE_SECONDS, _died(s, scene)) for s in deaths
    ]
    causes += [(r.time, RaisedFirst(r)) for r in raises if not r.echo]
    if causes:
        return min(causes, key=lambda cause: cause[0])[1]
    return _let_down(standings, [r for r in raises if r.echo])


def _let_down(standings: Sequence[Standing], echoes: Sequence[Raised]) -> Culprit | None:
    first = min(echoes, key=lambda r: r.time, default=None)
    until = first.time if first else float("inf")
    left = tuple(
        s.rank for s in standings if isinstance(s.answer, Returned) and s.answer.time <= until
    )
    unfinished = [s for s in standings if s.answer is None]
    if left and (first or unfinished):
        return LeftFirst(left, first)
    return RaisedFirst(first) if first else None


def _is_interrupt(raised: Raised) -> bool:
    return raised.type_name == "KeyboardInterrupt"


def _time_of_death(standing: Standing) -> float:
    return standing.end.time if standing.end else float("inf")


def _died(standing: Standing, scene: Scene) -> Died:
    if standing.end is None:
        return Died(standing.rank, None, None, scene.template_story)
    status = standing.end.status
    peak = standing.end.peak_memory_bytes
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Died(standing.rank, number, None, _cause_of(number, peak, scene))
    code = os.waitstatus_to_exitcode(status)
    return Died(
        standing.rank, None, code, "the function, or a library in it, called os._exit or exit()"
    )


def _cause_of(number: int, peak_bytes: int, scene: Scene) -> str:
    """The likely cause of a signal that we did not send."""
    match number:
        case signal.SIGKILL:
            return _cause_of_kill(peak_bytes, scene)
        case signal.SIGBUS:
            return (
                "most likely shared memory ran out: /dev/shm has "
                f"{_gib(scene.shm_bytes or 0)} free. Use num_workers=0, or give the container "
                "more (docker run --shm-size=8g)"
            )
        case signal.SIGSEGV | signal.SIGABRT | signal.SIGFPE | signal.SIGILL:
            return "a native library failed; the rank's standard error shows its Python stack"
        case signal.SIGTERM | signal.SIGINT | signal.SIGHUP:
            return "someone outside this run sent it"
        case _:
            return "the system ended it"


def _cause_of_kill(peak_bytes: int, scene: Scene) -> str:
    figures = f"its peak was {_gib(peak_bytes)} of {_gib(scene.memory_bytes)}"
    if peak_bytes * 4 > scene.memory_bytes:
        return f"most likely out of host memory: {figures}"
    return f"by the system when it runs out of host memory, or by someone: {figures}"


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def bystanders(culprits: Sequence[int], standings: Sequence[Standing], scene: Scene) -> list[str]:
    """A line for each other rank: what it was doing."""
    return [f"rank {s.rank} {_doing(s, scene)}" for s in standings if s.rank not in culprits]


def _doing(standing: Standing, scene: Scene) -> str:
    match standing.answer:
        case Returned():
            return "had returned"
        case Raised() as raised if raised.echo:
            return f"waited in {raised.call or 'a collective'}, {_at(raised, scene)}"
        case Raised() as raised if standing.signalled and _is_interrupt(raised):
            return f"was stopped at {_at(raised, scene)}"
        case Raised() as raised:
            return f"raised {raised.type_name} at {_at(raised, scene)}"
        case None:
            pass
    if standing.waiting is not None:
        waiting = standing.waiting
        return f"waited in {waiting.call}, {place_of(waiting.stack, scene.labels)}"
    return "was ended while it worked"


def _at(raised: Raised, scene: Scene) -> str:
    return place_of(raised.stack, scene.labels)


_FAULT_LINE = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')


def frames_in_fault(lines: Sequence[str]) -> tuple[Frame, ...]:
    """The stack that faulthandler printed on a rank's standard error, outermost first.

    faulthandler's format is documented: most recent call first, `File "f", line N in function`.
    """
    matches = [m for line in lines if (m := _FAULT_LINE.match(line))]
    return tuple(Frame(m["file"], int(m["line"]), m["function"]) for m in reversed(matches))
