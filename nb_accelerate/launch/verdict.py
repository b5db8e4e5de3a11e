"""From a culprit to the exception that the cell sees: its class, its place, its notes."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, assert_never

from nb_accelerate import payload
from nb_accelerate.errors import (
    LeftEarly,
    PayloadError,
    Unreturnable,
    WorkerDied,
    WorkerRaised,
)
from nb_accelerate.launch.places import place_of
from nb_accelerate.launch.story import (
    Died,
    LeftFirst,
    RaisedFirst,
    bystanders,
    find_culprit,
    frames_in_fault,
)
from nb_accelerate.messages import Raised, Returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nb_accelerate.launch.standing import Standing
    from nb_accelerate.launch.story import Culprit, Scene

__all__ = ["how_it_ended", "verdict"]


def verdict(
    standings: Sequence[Standing], scene: Scene, error_lines: Sequence[Sequence[str]]
) -> BaseException | None:
    """What the run should raise; None when all is well.

    `error_lines` is each rank's tail of standard error: a native crash prints its stack there.
    """
    culprit = find_culprit(standings, scene)
    if culprit is None:
        return _unreturnable(standings)
    error = _exception(culprit, standings, scene, error_lines)
    for line in bystanders(_ranks_of(culprit), standings, scene):
        error.add_note(line)
    return error


def _unreturnable(standings: Sequence[Standing]) -> Unreturnable | None:
    for standing in standings:
        if isinstance(standing.answer, Returned) and standing.answer.complaint:
            return Unreturnable(
                f"The function ran to its end on every rank, but rank {standing.rank}'s return "
                f"value cannot travel to the kernel: {standing.answer.complaint} "
                "The other ranks' values are in `error.run.values`.",
                rank=standing.rank,
            )
    return None


def _ranks_of(culprit: Culprit) -> tuple[int, ...]:
    match culprit:
        case Died(rank):
            return (rank,)
        case RaisedFirst(raised):
            return (raised.rank,)
        case LeftFirst(ranks, waiting):
            return (*ranks, waiting.rank) if waiting else ranks
        case _:
            assert_never(culprit)


def _exception(
    culprit: Culprit,
    standings: Sequence[Standing],
    scene: Scene,
    error_lines: Sequence[Sequence[str]],
) -> BaseException:
    match culprit:
        case Died():
            return _died(culprit, scene, error_lines[culprit.rank])
        case RaisedFirst(raised):
            return _raised(raised, standings[raised.rank], len(standings), scene)
        case LeftFirst():
            return _left_early(culprit, standings, scene)
        case _:
            assert_never(culprit)


def _died(culprit: Died, scene: Scene, error_lines: Sequence[str]) -> WorkerDied:
    stack = frames_in_fault(error_lines)
    place = f" at {place_of(stack, scene.labels)}" if stack else ""
    if culprit.signal is not None:
        how = f"was killed by {signal.Signals(culprit.signal).name}{place}"
    elif culprit.exit_code is not None:
        how = f"ended with exit code {culprit.exit_code} before its function returned"
    else:
        how = "is gone"
    return WorkerDied(
        f"rank {culprit.rank} {how}: {culprit.cause}.",
        rank=culprit.rank,
        signal=culprit.signal,
        exit_code=culprit.exit_code,
    )


def _raised(raised: Raised, standing: Standing, world_size: int, scene: Scene) -> BaseException:
    when = (
        "before the function began" if raised.before_call else place_of(raised.stack, scene.labels)
    )
    note = f"raised by rank {raised.rank} of {world_size}, {when}"
    if raised.type_name == "SystemExit":
        return _left_with_code(raised, note)
    error = _rebuilt(raised, standing)
    error.add_note(note)
    return error


def _rebuilt(raised: Raised, standing: Standing) -> BaseException:
    """The rank's exception itself, with the rank's own traceback; else a stand-in."""
    if raised.error is not None:
        descriptor, standing.descriptor = standing.descriptor, None
        with suppress(PayloadError):
            error, trace = payload.unpack_error(raised.error, descriptor)
            # One whose __str__ raises cannot be shown: IPython would show that error instead.
            if isinstance(payload.attempt(lambda: str(error)), str):
                return error.with_traceback(trace)
    return WorkerRaised(
        f"{raised.type_name}: {raised.text}\n\n{raised.traceback}",
        rank=raised.rank,
        type_name=raised.type_name,
        remote_traceback=raised.traceback,
    )


def _left_with_code(raised: Raised, note: str) -> WorkerDied:
    code = int(raised.text) if raised.text.lstrip("-").isdigit() else 1
    error = WorkerDied(
        f"rank {raised.rank} called sys.exit({raised.text}).", rank=raised.rank, exit_code=code
    )
    error.add_note(note)
    return error


def _left_early(culprit: LeftFirst, standings: Sequence[Standing], scene: Scene) -> LeftEarly:
    left = ", ".join(f"rank {rank}" for rank in culprit.ranks)
    waiting = culprit.waiting
    if waiting is not None:
        who = f"rank {waiting.rank} waits in {waiting.call or 'a collective'}"
        where = place_of(waiting.stack, scene.labels)
    else:
        stuck = next(s for s in standings if s.answer is None)
        who = f"rank {stuck.rank} waits" + (f" in {stuck.waiting.call}" if stuck.waiting else "")
        where = place_of(stuck.waiting.stack if stuck.waiting else (), scene.labels)
    return LeftEarly(
        f"{left} returned while {who}, {where}. Every rank must take part in every collective: "
        "look for a return before that line, or a collective under `if is_main_process`.",
        ranks=culprit.ranks,
    )


def how_it_ended(returncode: int | None, pid: int | None) -> str:
    """A process's end in words, from `Popen.returncode`."""
    if returncode is None:
        return f"process {pid} does not answer"
    if returncode < 0:
        return f"process {pid} was killed by {signal.Signals(-returncode).name}"
    return f"process {pid} ended with exit code {returncode}"
