"""Profiling: torch's profiler around a block, its trace written by each rank."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nb_accelerate.errors import SpecError

from .plugins import KwargsHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .collectives import Collectives

__all__ = ["ProfileKwargs", "profiled"]


@dataclass
class ProfileKwargs(KwargsHandler):
    """What torch's profiler is told.

    Attributes:
        activities: "cpu", "cuda", "xpu" and so on; None is all that torch can record here.
        schedule_option: what `torch.profiler.schedule` is told.
        on_trace_ready: called with the profiler at the end of each of the schedule's cycles.
        output_trace_dir: where each rank writes its Chrome trace, profile_<rank>.json.
    """

    activities: Sequence[str] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None

    def build(self) -> torch.profiler.profile:
        """A profiler that has not begun.

        Raises:
            SpecError: torch knows no such activity.
        """
        schedule = self.schedule_option
        return torch.profiler.profile(
            activities=None if self.activities is None else [*map(_activity, self.activities)],
            schedule=None if schedule is None else torch.profiler.schedule(**schedule),
            on_trace_ready=self.on_trace_ready,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
            with_modules=self.with_modules,
        )


@contextmanager
def profiled(asked: ProfileKwargs, collectives: Collectives) -> Iterator[torch.profiler.profile]:
    """Record what the block does. With a trace folder, a collective: the ranks wait for all traces.

    A block that raises writes no trace.
    """
    with asked.build() as profiler:
        yield profiler
    if asked.output_trace_dir is not None:
        folder = Path(asked.output_trace_dir)
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / f"profile_{collectives.rank}.json"))
        collectives.barrier()


def _activity(name: str) -> torch.profiler.ProfilerActivity:
    known = torch.profiler.ProfilerActivity.__members__
    if str(name).upper() not in known:
        raise SpecError(f"activities={name!r} is none of {', '.join(map(str.lower, known))}.")
    return known[str(name).upper()]
