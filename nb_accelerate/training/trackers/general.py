"""What every tracker is, and what the built-in ones share."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

from nb_accelerate.training.joining import replica_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from nb_accelerate.training.nested import Anything

__all__ = ["AbsentTracker", "GeneralTracker", "guest", "on_main_process"]

M = TypeVar("M", bound="Callable[..., Any]")

_MUST_HAVE = ("name", "requires_logging_directory", "tracker")


def on_main_process(method: M) -> M:
    """Decorate a tracker's method to act on rank 0 alone, if its class is `main_process_only`.

    Decided when it is called; the other ranks get None.
    """

    @functools.wraps(method)
    def guarded(self: GeneralTracker, *args: Anything, **kwargs: Anything) -> Anything:
        if getattr(self, "main_process_only", False) and replica_here().rank != 0:
            return None
        return method(self, *args, **kwargs)

    return cast("M", guarded)


class GeneralTracker:
    """What an Accelerator tells its `log` to. Heirs have the attributes below and `tracker`.

    An Accelerator makes trackers on the main process alone. The constructor keeps what it is told;
    `start` opens files and connections, when the run is known: then the ranks have met.

    Attributes:
        name: what `log_with=`, `init_kwargs`, `log_kwargs` and `get_tracker` call it.
        requires_logging_directory: whether its class is constructed with (project_name,
            logging_dir, **kwargs) instead of (project_name, **kwargs).
        main_process_only: for methods that are decorated with `on_main_process`.

    Raises:
        NotImplementedError: the heir lacks one of the attributes.
    """

    name: str
    requires_logging_directory: bool
    main_process_only: bool = True

    if TYPE_CHECKING:

        @property
        def tracker(self) -> Any:  # noqa: ANN401  # another package's
            """What the tracked package itself calls a run, a writer or a task."""

    def __init__(self, _blank: bool = False) -> None:  # noqa: FBT001, FBT002  # upstream's
        if _blank:
            return
        # Not hasattr: it would ask properties that have nothing to answer before `start`.
        missing = [name for name in _MUST_HAVE if name not in dir(self)]
        if missing:
            raise NotImplementedError(
                f"{type(self).__name__} is a tracker without {', '.join(missing)}. Define `name` "
                f"and `requires_logging_directory` in the class, and `tracker` as a property."
            )

    def start(self) -> None:
        """Open what values will go to. Called by `Accelerator.init_trackers`."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters: what the run was started with."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep values of one step."""

    def finish(self) -> None:
        """Write out and close. Called by `Accelerator.end_training`, else at the process's end."""


class AbsentTracker(GeneralTracker):
    """What ranks without trackers get from `get_tracker`: any method may be called, none acts."""

    def __init__(self) -> None:
        super().__init__(_blank=True)

    @property
    def tracker(self) -> AbsentTracker:
        """Likewise."""
        return self

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_") or name in _MUST_HAVE:
            raise AttributeError(f"There is no tracker on this rank, so it has no {name}.")
        return _do_nothing


def _do_nothing(*_: Anything, **__: Anything) -> None:
    return None


def guest(module: str, tracker: str) -> Any:  # noqa: ANN401  # a module that we do not depend on
    """The module that a tracker speaks to.

    Raises:
        ImportError: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"The tracker {tracker!r} needs the module {module}, which cannot be imported here: "
            f"{error}. Install its package, or leave {tracker!r} out of log_with."
        ) from error
