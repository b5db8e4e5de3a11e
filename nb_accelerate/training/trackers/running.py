"""The trackers of one Accelerator in one process: begun, told, and ended in any case."""

from __future__ import annotations

import atexit
import os
import warnings
from typing import TYPE_CHECKING, Any

from nb_accelerate.errors import SpecError

from .general import AbsentTracker, GeneralTracker
from .kinds import LOGGER_TYPE_TO_CLASS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nb_accelerate.training.nested import Anything

    from .kinds import Wanted

__all__ = ["Tracking"]


class Tracking:
    """What trackers an Accelerator wants, and those that it has begun: on rank 0, on no other.

    Trackers that nobody has finished when the process ends, as when training has raised, are
    finished then: what they hold back is not lost.

    Attributes:
        wanted: trackers and names of such.
        begun: those of `init_trackers`, in that order.
    """

    def __init__(
        self, wanted: Sequence[Wanted], logging_dir: str | os.PathLike[str] | None, rank: int
    ) -> None:
        self.wanted: list[Wanted] = list(wanted)
        self.begun: list[GeneralTracker] = []
        self._logging_dir = logging_dir
        self._is_main = rank == 0
        self._waits = self._is_main and bool(self.wanted)
        self._open: dict[int, _AtTheEnd] = {}

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to tell values to, and nobody to tell that."""
        return not (self.begun or self._waits)

    def begin(
        self,
        project_name: str,
        config: Mapping[str, Any] | None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None,
    ) -> None:
        """Begin a run of each tracker. Those of an earlier call are finished first.

        An object that was given to the Accelerator, and has not been finished, goes on.
        """
        if not self._is_main:
            return
        trackers = [self._made(one, project_name, init_kwargs or {}) for one in self.wanted]
        self.end(sparing=trackers)
        self.begun[:] = trackers
        for tracker in trackers:
            if id(tracker) not in self._open:
                tracker.start()
                self._open[id(tracker)] = _AtTheEnd(tracker)
        if config is not None:
            for tracker in trackers:
                tracker.store_init_configuration(config)  # type: ignore[arg-type]  # the user's own

    def log(
        self,
        values: Mapping[str, object],
        step: int | None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None,
    ) -> None:
        """Tell every tracker."""
        if not self.begun:
            self._say_that_none_has_begun()
        more = log_kwargs or {}
        for tracker in self.begun:
            tracker.log(values, step=step, **more.get(tracker.name, {}))  # type: ignore[arg-type]

    def get(self, name: str, *, unwrap: bool = False) -> Anything:
        """A tracker by its name; where none has begun, something that takes calls and does nothing.

        Raises:
            SpecError: there is none of that name among those that have begun.
        """
        for tracker in self.begun:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        if self.begun:
            known = ", ".join(repr(tracker.name) for tracker in self.begun)
            raise SpecError(f"get_tracker({name!r}): the trackers of this Accelerator are {known}.")
        return AbsentTracker()

    def end(self, *, sparing: Sequence[GeneralTracker] = ()) -> None:
        """Finish all that is not finished. What has begun stays to be looked at."""
        for number in list(self._open.keys() - {id(tracker) for tracker in sparing}):
            self._open.pop(number).finish()

    def _made(
        self, wanted: Wanted, project_name: str, init_kwargs: Mapping[str, Mapping[str, Any]]
    ) -> GeneralTracker:
        if isinstance(wanted, GeneralTracker):
            return wanted
        make: Any = LOGGER_TYPE_TO_CLASS[str(wanted)]
        where = (self._logging_dir,) if make.requires_logging_directory else ()
        tracker: GeneralTracker = make(project_name, *where, **init_kwargs.get(str(wanted), {}))
        return tracker

    def _say_that_none_has_begun(self) -> None:
        self._waits = False
        names = ", ".join(str(getattr(one, "name", one)) for one in self.wanted)
        warnings.warn(
            f"log was called, but init_trackers was not, so {names} got nothing. Call "
            f"accelerator.init_trackers(project_name) first.",
            stacklevel=4,
        )


class _AtTheEnd:
    """Finishes a tracker when its process ends, unless it was finished before."""

    def __init__(self, tracker: GeneralTracker) -> None:
        self._tracker = tracker
        self._process = os.getpid()
        # Not when nobody refers to the Accelerator any more: the tracker may be in use still.
        atexit.register(self._finish_here)

    def finish(self) -> None:
        atexit.unregister(self._finish_here)
        self._finish_here()

    def _finish_here(self) -> None:
        if os.getpid() == self._process:  # a forked child that ends has nothing to finish
            self._tracker.finish()
