"""Where a thread stands, in the user's words: their lines, and the collective they wait in."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from nb_accelerate.messages import Frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType, TracebackType

__all__ = ["collective_of", "frames_of_main", "frames_of_traceback", "user_frames"]

_PACKAGE = str(Path(__file__).parent.parent)
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_COLLECTIVE_MODULES = ("/torch/distributed/",)
_BACKWARD = "/torch/autograd/graph.py"
# Wrappers of torch.distributed that stand around the call that the user wrote.
_WRAPPERS = {"wrapper", "inner", "decorate_context"}


def frames_of_main() -> tuple[Frame, ...]:
    """The main thread's stack, outermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    return _frames(traceback.walk_stack(frame))[::-1] if frame else ()


def frames_of_traceback(trace: TracebackType | None) -> tuple[Frame, ...]:
    """A traceback's entries, outermost first."""
    return _frames(traceback.walk_tb(trace))


def _frames(walk: Iterable[tuple[FrameType, int]]) -> tuple[Frame, ...]:
    return tuple(
        Frame(
            frame.f_code.co_filename,
            line or 0,
            frame.f_code.co_name,
            linecache.getline(frame.f_code.co_filename, line or 0).strip(),
        )
        for frame, line in walk
    )


def user_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of the user's own code; of installed libraries where there are none."""
    ours_aside = [f for f in frames if not f.filename.startswith((_PACKAGE, "<frozen", "<string>"))]
    mine = [f for f in ours_aside if not f.filename.startswith(_LIBRARIES)]
    return tuple(mine or ours_aside[-1:])


def collective_of(frames: Sequence[Frame]) -> str:
    """The collective that a stack stands in, such as "all_gather"; "" when in none.

    A backward pass counts: under DDP it ends by waiting for the others' gradients.
    """
    for frame in frames:
        if (
            any(m in frame.filename for m in _COLLECTIVE_MODULES)
            and frame.function not in _WRAPPERS
        ):
            return frame.function
    if any(frame.filename.endswith(_BACKWARD) for frame in frames):
        return "backward"
    return ""
