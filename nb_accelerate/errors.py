"""Every error that nb_accelerate raises of its own accord.

    NbAccelerateError
    ├── SpecError          a setting that cannot be (also a ValueError)
    │   ├── DistributedOperationException   data of the ranks that does not fit together
    │   └── TorchdataMissing   no StatefulDataLoader for who asks for one (also an ImportError)
    ├── PlanError          a request that this machine cannot fulfil
    ├── PayloadError       something captured or returned that cannot travel (also a TypeError)
    ├── CheckpointError    a checkpoint that cannot be written or read (also a RuntimeError)
    │   └── UnsafeCheckpoint   one that would run code when it is read (also an UnpicklingError)
    ├── NotInThisVersion   a part of Accelerate that is not here (also a NotImplementedError)
    └── LaunchError        a run that ended badly; `.run` holds what there is of it
        ├── StartError     workers could not be started
        ├── WorkerDied     a rank ended without an answer: a signal or an exit code
        ├── WorkerRaised   a rank raised an exception whose class cannot be rebuilt here
        ├── LeftEarly      a rank returned while others wait for it in a collective
        ├── Unreturnable   a rank's return value cannot travel; the training itself is done
        └── RunTimeout     the run took longer than `timeout=` (also a TimeoutError)

An exception that a rank raised and that can be rebuilt is raised as itself, not as one of these.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CheckpointError",
    "DistributedOperationException",
    "LaunchError",
    "LeftEarly",
    "NbAccelerateError",
    "NotInThisVersion",
    "PayloadError",
    "PlanError",
    "RunTimeout",
    "SpecError",
    "StartError",
    "TorchdataMissing",
    "Unreturnable",
    "UnsafeCheckpoint",
    "WorkerDied",
    "WorkerRaised",
]


class NbAccelerateError(Exception):
    """The root: `except NbAccelerateError` catches all that this package itself raises."""


class SpecError(NbAccelerateError, ValueError):
    """A setting that cannot be, whatever the machine."""


class DistributedOperationException(SpecError):
    """What the ranks bring to a collective does not fit together. The name is Accelerate's."""


class TorchdataMissing(SpecError, ImportError):
    """A StatefulDataLoader was asked for, and there is no torchdata that has it."""


class PlanError(NbAccelerateError):
    """A request that this machine cannot fulfil, with the values and the cure."""


class PayloadError(NbAccelerateError, TypeError):
    """Something that cannot travel between the kernel and a worker, named with its type."""


class CheckpointError(NbAccelerateError, RuntimeError):
    """A checkpoint that cannot be written, or that does not hold what training needs."""


class UnsafeCheckpoint(CheckpointError, UnpicklingError):
    """A file that holds objects of classes: to load it would be to run what it says."""


class NotInThisVersion(NbAccelerateError, NotImplementedError):
    """A part of Accelerate's that can be imported from `nb_accelerate.compat`, and no more."""


class LaunchError(NbAccelerateError):
    """A run that ended badly.

    `run` is the `Run` it happened in (None where there is none): values of the ranks that did
    return, metrics and log are still there.
    """

    run: object = None


class StartError(LaunchError):
    """The workers could not be started."""


class WorkerDied(LaunchError):
    """A rank ended without an answer.

    Attributes:
        rank: which one.
        signal: the signal's number when one killed it, else None.
        exit_code: the exit code when it left by itself, else None.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int = -1,
        signal: int | None = None,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.signal = signal
        self.exit_code = exit_code


class WorkerRaised(LaunchError):
    """A rank raised an exception whose class cannot be rebuilt in this process.

    Attributes:
        rank: which one.
        type_name: the exception's qualified class name.
        remote_traceback: the rank's traceback as text.
    """

    def __init__(
        self, message: str, *, rank: int = -1, type_name: str = "", remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.type_name = type_name
        self.remote_traceback = remote_traceback


class LeftEarly(LaunchError):
    """A rank returned while others wait for it in a collective.

    Attributes:
        ranks: the ranks that had left.
    """

    def __init__(self, message: str, *, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class Unreturnable(LaunchError):
    """A rank's return value cannot travel to the kernel; its training ran to the end."""

    def __init__(self, message: str, *, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class RunTimeout(LaunchError, TimeoutError):
    """The run took longer than the `timeout=` that was asked for."""
