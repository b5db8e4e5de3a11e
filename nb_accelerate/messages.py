"""All that ever crosses between the kernel, the template and the workers: frozen values.

    kernel → template   StartRanks, Needed, SignalRanks, Retire
    template → kernel   RanksStarted, RankEnded
    kernel → worker     TakeSeat, Go, ShowStack, RequestStop
    worker → kernel     Ready, Metrics, Progress, Waiting, StackShown, Interrupted,
                        Returned, Raised, Left
    made in the kernel  Output (from a worker's pipes), Notice (what the run itself has to say)

Times are seconds of `time.monotonic()`, which all processes of one host share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Frame",
    "Go",
    "Interrupted",
    "Left",
    "Metric",
    "Metrics",
    "Needed",
    "Notice",
    "Output",
    "Parcel",
    "Progress",
    "Raised",
    "RankEnded",
    "RanksStarted",
    "Ready",
    "Rendezvous",
    "RequestStop",
    "Retire",
    "Returned",
    "RunMessage",
    "ShowStack",
    "SignalRanks",
    "StackShown",
    "StartRanks",
    "Stream",
    "TakeSeat",
    "Waiting",
    "WorkerMessage",
]

Stream: TypeAlias = Literal["stdout", "stderr"]


# ---------------------------------------------------------------- parts
@dataclass(frozen=True, slots=True)
class Parcel:
    """A pickle and where its big buffers lie in the shared-memory file that travels with it.

    `body` is the pickle itself; when it is empty, the pickle is the file's last span. The message
    that holds a parcel with spans carries one file descriptor.
    """

    body: bytes
    spans: tuple[tuple[int, int], ...] = ()
    """(offset, length) in bytes of each out-of-band buffer."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a run meet: a TCPStore on loopback."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry of a stack, innermost last."""

    filename: str
    line: int
    function: str
    source: str = ""


# ---------------------------------------------------------------- kernel → worker
@dataclass(frozen=True, slots=True)
class TakeSeat:
    """To an interpreter of its own: the seat, and where the ranks meet.

    Carries the descriptors of standard output and error, and for rank 0 the listening socket of
    the rendezvous, which it then serves.
    """

    seat: object
    rendezvous: Rendezvous
    scratch: str


@dataclass(frozen=True, slots=True)
class Go:
    """Start: the call, and the kernel's surroundings that must hold while it runs."""

    call: Parcel | None
    """(function, args, kwargs, objects to write back); None when the rank was forked with it."""
    sources: Mapping[str, str]
    """File name → text of the cells that the function comes from."""
    labels: Mapping[str, str]
    """File name → what the user calls it, such as "Cell In[7]"."""
    path: tuple[str, ...]
    """The kernel's sys.path."""
    installs: tuple[str, ...]
    """Modules whose `install()` has put a finder of theirs into the kernel's sys.meta_path."""
    cwd: str
    argv: tuple[str, ...]
    stall_seconds: float
    """A collective without progress for this long is reported as `Waiting`."""


@dataclass(frozen=True, slots=True)
class ShowStack:
    """Answer with a `StackShown`."""


@dataclass(frozen=True, slots=True)
class RequestStop:
    """End at the next point that suits: what `accelerator.should_stop` tells."""


# ---------------------------------------------------------------- worker → kernel
@dataclass(frozen=True, slots=True)
class Ready:
    """The rank has joined its group and waits for `Go`."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class Metric:
    """One `accelerator.log` call, or the mean of several when the kernel could not keep up."""

    step: int
    time: float
    """Seconds since the epoch."""
    values: Mapping[str, float]
    merged: int = 1
    """How many calls this one stands for."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a rank logged since its last message."""

    rank: int
    records: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rank is in one `accelerator.track` loop."""

    rank: int
    description: str
    done: int
    total: int | None
    finished: bool
    time: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """The rank's main thread has not moved within a collective."""

    rank: int
    seconds: float
    call: str
    """The collective, such as "all_gather"."""
    stack: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class StackShown:
    """The stack of the rank's main thread: user code and the call it stands in."""

    rank: int
    stack: tuple[Frame, ...]
    call: str
    """The collective that it stands in, or ""."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The rank has seen the interrupt; its `finally` blocks run."""

    rank: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The function has returned; its value, or why the value cannot travel."""

    rank: int
    value: Parcel
    """(the value, the state of each object to write back: rank 0's only)"""
    complaint: str
    """Names what in the value cannot travel, so that `value` holds None instead; else ""."""
    time: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Raised:
    """The function, or what prepares it, has raised."""

    rank: int
    error: Parcel | None
    """The exception with its traceback and chain; None when it cannot travel."""
    type_name: str
    text: str
    """str(exception)."""
    traceback: str
    """As Python prints it, without this package's own frames."""
    stack: tuple[Frame, ...]
    """User frames from the function's own to where it was raised."""
    call: str
    """The collective that it was raised in, or ""."""
    echo: bool
    """It tells that a peer went away, so it is hardly the cause."""
    time: float
    before_call: bool = False
    """It was raised before the function began: group, payload, surroundings."""


@dataclass(frozen=True, slots=True)
class Left:
    """All is written and flushed; the process ends now."""

    rank: int


# ---------------------------------------------------------------- kernel ↔ template
@dataclass(frozen=True, slots=True)
class StartRanks:
    """Fork one worker per environment.

    Carries 3 descriptors per rank (channel, stdout, stderr), then the run's own control socket,
    then the listening socket of the rendezvous.
    """

    seats: tuple[object, ...]
    environments: tuple[Mapping[str, str], ...]
    rendezvous: Rendezvous
    run_id: str
    scratch: str
    """A folder for what ranks and their children leave behind when they are killed."""
    ahead: bool = False
    """No call waits for them yet: they may be forked when the template has nothing else to do."""


@dataclass(frozen=True, slots=True)
class Needed:
    """A call waits for the ranks that were ordered ahead."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Leave when the last run has ended; no new one comes."""


@dataclass(frozen=True, slots=True)
class RanksStarted:
    """The workers' process ids, by rank."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SignalRanks:
    """Send a signal to these ranks: to the process alone, or to its whole group."""

    local_ranks: tuple[int, ...]
    signal: int
    whole_group: bool


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A worker process has ended; `status` is a wait status as os.waitpid gives it."""

    local_rank: int
    status: int
    time: float
    peak_memory_bytes: int


# ---------------------------------------------------------------- made in the kernel
@dataclass(frozen=True, slots=True)
class Output:
    r"""A piece of what a rank wrote to its standard output or error.

    `ending` is how the line ended: "\n" a whole line, "\r" a line that the next one overwrites
    (a progress bar), "" a line still open after a moment of silence.
    """

    rank: int
    stream: Stream
    text: str
    ending: Literal["\n", "\r", ""] = "\n"
    time: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Notice:
    """What the run itself tells the user: a banner, a warning, who waits where."""

    text: str
    level: Literal["info", "warning"] = "info"


WorkerMessage: TypeAlias = (
    Ready | Metrics | Progress | Waiting | StackShown | Interrupted | Returned | Raised | Left
)
RunMessage: TypeAlias = (
    Ready
    | Output
    | Metrics
    | Progress
    | Notice
    | Waiting
    | Interrupted
    | Returned
    | Raised
    | Left
    | RankEnded
)
