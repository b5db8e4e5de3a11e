"""Trackio."""

from __future__ import annotations

from .of_runs import RunTracker

__all__ = ["TrackioTracker"]


class TrackioTracker(RunTracker):
    """Logs to a run of a Trackio project; further arguments are for `trackio.init`."""

    name = "trackio"
