"""Telling: what a replica says of its training, to whoever watches the run and to trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from .joining import leave_own_group
from .progress import Tracked
from .together import Together

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .binding import Binding
    from .nested import Anything
    from .trackers import GeneralTracker, Wanted

__all__ = ["Telling"]

T = TypeVar("T")


class Telling(Together):
    """Metrics and progress of a replica."""

    @property
    def _here(self) -> Binding:
        raise NotImplementedError

    @property
    def log_with(self) -> list[Wanted]:
        """The trackers that were asked for and can be had, or their names."""
        return self._here.tracking.wanted

    @property
    def trackers(self) -> list[GeneralTracker]:
        """The trackers that `init_trackers` has begun: on the main process alone."""
        return self._here.tracking.begun

    def init_trackers(
        self,
        project_name: str,
        config: Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin a run of each tracker in `log_with`, on the main process.

        Args:
            project_name: what the trackers file it under.
            config: hyperparameters to keep with it.
            init_kwargs: for each tracker's own constructor, by its name:
                {"wandb": {"tags": ["first"]}}.
        """
        self._here.tracking.begin(project_name, config, init_kwargs)

    def log(
        self,
        values: Mapping[str, object],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Tell this rank's values to whoever watches the run, and the main process's to trackers.

        Who watches sees numbers and one-element tensors: cheap, no collective, from every rank or
        from some; what is shown is the mean and the band. Trackers are told what they can keep.

        Args:
            values: by name.
            step: which step they are of.
            log_kwargs: for each tracker's own `log`, by its name.
        """
        here = self._here
        here.replica.reporter.metrics(values, step)
        if not here.tracking.is_idle:
            here.tracking.log(values, step, log_kwargs)

    def get_tracker(
        self,
        name: str,
        unwrap: bool = False,  # noqa: FBT001, FBT002  # upstream's order
    ) -> Anything:  # a tracker, or what another package calls it
        """A tracker that `init_trackers` has begun.

        On other ranks than the main one there is none: what they get takes any call and does
        nothing.

        Args:
            name: its name.
            unwrap: give what its package calls a run, a writer or a task.

        Raises:
            SpecError: there is none of that name.
        """
        return self._here.tracking.get(name, unwrap=unwrap)

    def end_training(self) -> None:
        """Finish the trackers, and leave the group that this process joined for its Accelerator.

        Groups of launches of this package are left to them. What is not finished when the process
        ends, as when training has raised, is finished then.
        """
        self._here.tracking.end()
        leave_own_group()

    def track(
        self, iterable: Iterable[T], description: str = "", total: int | None = None
    ) -> Tracked[T]:
        """The iterable, telling how far it is: all ranks' loops become one progress bar."""
        return Tracked(iterable, description, self._here.replica.reporter, total)
