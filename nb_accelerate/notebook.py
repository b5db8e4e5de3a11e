"""The doors for cells: notebook_launcher, debug_launcher, and what looks at past runs."""

from __future__ import annotations

import functools
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nb_accelerate.errors import PayloadError, SpecError
from nb_accelerate.launch.ahead import warm_up, warm_up_in_a_kernel
from nb_accelerate.launch.environment import run_root, survey_here
from nb_accelerate.launch.inline import Inline
from nb_accelerate.launch.ledger import Ledger, list_runs, tidy_up
from nb_accelerate.launch.limits import Limits
from nb_accelerate.launch.processes import remember
from nb_accelerate.launch.run import Run
from nb_accelerate.launch.workers import Call, Workers
from nb_accelerate.messages import Notice
from nb_accelerate.plan import make_plan
from nb_accelerate.spec import LaunchSpec
from nb_accelerate.ui.views import default_view, show_past

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nb_accelerate.launch.ledger import PastRun
    from nb_accelerate.launch.run import Watcher
    from nb_accelerate.machine import Machine
    from nb_accelerate.plan import Plan

__all__ = ["debug_launcher", "notebook_launcher", "runs", "warm_up"]


# Most launches of a kernel ask for the same.
_planned = functools.lru_cache(maxsize=16)(make_plan)

# Listing the run folders costs a third of a millisecond.
_LAUNCHES_PER_LOOK = 32


def notebook_launcher(  # noqa: PLR0913 - upstream's signature, and ours behind the star
    function: Callable[..., object],
    args: Sequence[object] = (),
    num_processes: int | None = None,
    mixed_precision: str | None = None,
    use_port: str | int | None = None,
    master_addr: str | None = None,
    node_rank: int | None = None,
    num_nodes: int | None = None,
    rdzv_backend: str | None = None,
    rdzv_endpoint: str | None = None,
    rdzv_conf: Mapping[str, object] | None = None,
    rdzv_id: str | None = None,
    max_restarts: int | None = None,
    monitor_interval: float | None = None,
    log_line_prefix_template: str | None = None,
    *,
    kwargs: Mapping[str, object] | None = None,
    block: bool = True,
    write_back: object = None,
    view: Watcher | None = None,
    timeout: float | None = None,
    spec: LaunchSpec | None = None,
    **settings: object,
) -> Run:
    """Run `function(*args, **kwargs)` on every device of this machine, or on `num_processes`.

    Each rank is a fresh process with a process group that is ready; its output, metrics and
    progress appear under the cell. A failed rank's own exception is raised here, with its own
    traceback, and nothing is left running.

    Args:
        function: the training function; it travels by value, so it may live in a cell.
        args: its positional arguments. Arrays and CPU tensors are mapped, not copied, per rank.
        num_processes: the number of ranks, all in one world; None: one per device, else one.
        mixed_precision: what the ranks' `Accelerator()` uses: "no", "fp16" or "bf16".
        use_port: the rendezvous' port on loopback; None: a free one.
        master_addr: for several machines.
        node_rank: for several machines.
        num_nodes: for several machines.
        rdzv_backend: for several machines.
        rdzv_endpoint: for several machines.
        rdzv_conf: accepted for compatibility; several machines need an engine.
        rdzv_id: for several machines.
        max_restarts: accepted as 0; this version starts a run once.
        monitor_interval: accepted for compatibility; ends are noticed at once.
        log_line_prefix_template: accepted for compatibility; lines are tagged by rank.
        kwargs: the function's keyword arguments.
        block: False returns at once; the run goes on and shows itself under this cell.
        write_back: an object with `state_dict` and `load_state_dict` (a model), or several: when
            the call returns, the kernel's own object holds what rank 0 trained.
        view: who watches instead of the cell.
        timeout: seconds after which the run is interrupted and `RunTimeout` raised.
        spec: the settings to start from; the arguments above override it.
        **settings: any other field of `LaunchSpec`, such as start_method or hardware.

    Returns:
        The run: `.value`, `.values`, `.metrics`, `.log`, `.folder`.

    Raises:
        SpecError, PlanError: the request cannot be, or not on this machine. Nothing was started.
        PayloadError: something captured cannot travel. Nothing was started.
        WorkerDied, LeftEarly, Unreturnable, RunTimeout: see `nb_accelerate.errors`.
        KeyboardInterrupt: the cell was interrupted; the ranks had `grace_seconds` to save.
    """
    __tracebackhide__ = True  # IPython then begins with the cell and goes on with the rank
    del rdzv_conf, monitor_interval, log_line_prefix_template
    settings |= {
        "num_processes": num_processes,
        "mixed_precision": mixed_precision,
        "use_port": None if use_port is None else str(use_port),
        "master_addr": master_addr,
        "node_rank": node_rank,
        "num_nodes": num_nodes,
        "rdzv_backend": rdzv_backend,
        "rdzv_endpoint": rdzv_endpoint,
        "rdzv_id": rdzv_id,
        "max_restarts": max_restarts,
        "timeout_seconds": timeout,
    }
    call = Call(function, tuple(args), kwargs, _restorable(write_back))
    launch = _Launch(_requested(spec, settings), call, survey_here())
    return launch.blocking(view) if block else launch.background(view)


def debug_launcher(
    function: Callable[..., object], args: Sequence[object] = (), num_processes: int = 2
) -> Run:
    """Run `function(*args)` on CPU processes with gloo, whatever devices there are."""
    return notebook_launcher(function, args, num_processes, hardware="cpu")


def runs(root: str | None = None) -> list[PastRun]:
    """The runs that are kept on disk, newest last; each draws itself in a cell.

    Args:
        root: where to look; None: the default place.
    """
    return list_runs(run_root(root))


def _requested(spec: LaunchSpec | None, settings: Mapping[str, Any]) -> LaunchSpec:
    """The settings that were given, over those of `spec`."""
    base = spec.to_settings() if spec else {}
    return LaunchSpec.from_settings(base | {k: v for k, v in settings.items() if v is not None})


def _restorable(write_back: object) -> tuple[Any, ...]:
    if write_back is None:
        return ()
    things = tuple(write_back) if isinstance(write_back, (tuple, list)) else (write_back,)
    for thing in things:
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise PayloadError(
                f"write_back={type(thing).__name__} object, but what is written back needs "
                "state_dict() and load_state_dict(), as a model or an optimizer has. "
                "For anything else, return it from the function and take it from run.value."
            )
    return things


@dataclass(frozen=True)
class _Launch:
    """A request about to become a run."""

    spec: LaunchSpec
    call: Call
    machine: Machine

    def blocking(self, view: Watcher | None) -> Run:
        __tracebackhide__ = True
        run, plan = self._run(view, block=True)
        with run:
            _announce(run, plan)
            for _ in run:
                pass
        return run.result()

    def background(self, view: Watcher | None) -> Run:
        run, plan = self._run(view, block=False)
        run.__enter__()
        _announce(run, plan)
        return run.in_background()

    def _run(self, view: Watcher | None, *, block: bool) -> tuple[Run, Plan]:
        plan = _planned(self.spec, self.machine)
        if plan.start_method == "inline" and not block:
            raise SpecError(
                "start_method='inline' runs in the kernel itself, so block=False cannot be. "
                "Leave one of them out."
            )
        name = getattr(self.call.function, "__name__", type(self.call.function).__name__)
        root = run_root(self.spec.run_root)
        if time.monotonic_ns() % _LAUNCHES_PER_LOOK == 0:
            tidy_up(root)
        ledger = Ledger(
            root,
            name,
            token=secrets.token_hex(3),
            spec=lambda: {"spec": self.spec.to_settings(), "banner": plan.banner},
        )
        run = Run(
            name,
            self._operation(plan),
            world_size=len(plan.seats),
            ledger=ledger,
            view=view or default_view(len(plan.seats), folder=ledger.folder, block=block),
            draw=_draw,
        )
        remember(run)
        return run, plan

    def _operation(self, plan: Plan) -> Inline | Workers:
        if plan.start_method == "inline":
            return Inline(plan.seats[0], self.call)
        limits = Limits(
            grace_seconds=self.spec.grace_seconds,
            hang_notice_seconds=self.spec.hang_notice_seconds,
            timeout_seconds=self.spec.timeout_seconds,
            settles=plan.settles,
        )
        port = int(self.spec.use_port or 0)
        return Workers(plan, self.call, limits, self.machine, port=port)


def _announce(run: Run, plan: Plan) -> None:
    run.tell(Notice(plan.banner))
    for note in plan.notes:
        run.tell(Notice(note, "warning"))


def _draw(run: Run) -> None:
    show_past(run.metrics, run.log, summary=run.summary, ok=run.error is None)


warm_up_in_a_kernel()
