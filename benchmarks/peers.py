"""The registry of launchers: one `Peer` each.

A peer is notebook code. `setup` defines two functions:

    join()                           first statement in every rank; afterwards there is a group
    launch(num_ranks, function, *args)    runs function(*args) on so many ranks and waits for all
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OURS", "OURS_WITHOUT_SPARES", "PEERS", "REFERENCE", "Peer"]


@dataclass(frozen=True, slots=True)
class Peer:
    """A launcher, as a notebook uses it."""

    name: str
    setup: str
    ready: str = ""
    """Waits, untimed, for what the launcher makes ready in the background."""
    is_slow: bool = False
    """Takes seconds per launch: it gets fewer turns."""
    launches_only: bool = False
    """A variant that differs in launching alone."""


_FREE_PORT = """
def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
"""

_ALREADY_JOINED = """
def join():
    pass
"""

# Without cpu=True, each rank trains alone on a machine without accelerators.
_ACCELERATE = f"""{_FREE_PORT}
import torch
from accelerate import notebook_launcher
def join():
    from accelerate import Accelerator
    Accelerator(cpu=True)
def launch(num_ranks, function, *args):
    notebook_launcher(function, args, num_processes=num_ranks, use_port=str(free_port()))
"""

_FABRIC = f"""{_ALREADY_JOINED}
import torch
from lightning_fabric import Fabric
def launch(num_ranks, function, *args):
    fabric = Fabric(accelerator="cpu", devices=num_ranks, strategy="ddp_notebook")
    fabric.launch(lambda _, *given: function(*given), *args)
"""

_TORCHRUNX = f"""{_ALREADY_JOINED}
import torch, torchrunx
def launch(num_ranks, function, *args):
    launcher = torchrunx.Launcher(
        hostnames=["localhost"], workers_per_host=num_ranks, backend="gloo"
    )
    launcher.run(function, *args)
"""

_OURS = f"""{_ALREADY_JOINED}
from nb_accelerate import notebook_launcher
def launch(num_ranks, function, *args):
    notebook_launcher(function, args, num_processes=num_ranks, hardware="cpu")
"""

# The template's imports are over when it has not computed for longer than it pauses.
_TEMPLATE_IS_READY = """
import psutil, time
from nb_accelerate.launch.template import template_of_this_kernel
def cpu_seconds_of_template():
    return sum(psutil.Process(template_of_this_kernel().pid).cpu_times()[:2])
before = -1.0
while before != cpu_seconds_of_template():
    before = cpu_seconds_of_template()
    time.sleep(1.5)
"""

_WITHOUT_SPARES = """
from nb_accelerate.launch.template import Template
Template.prepare = lambda self, crew: None
Template.expect = lambda self, seats: None
"""


def _torch_multiprocessing(method: str) -> str:
    """The plain recipe; a spawned process cannot import a cell's function, so bytes travel."""
    return f"""{_FREE_PORT}
import cloudpickle, torch, torch.multiprocessing
from benchmarks.entry import enter
def join():
    import torch.distributed
    torch.distributed.init_process_group("gloo")
def launch(num_ranks, function, *args):
    call = (function, args) if {method!r} == "fork" else cloudpickle.dumps((function, args))
    torch.multiprocessing.start_processes(
        enter, (num_ranks, free_port(), call), nprocs=num_ranks, start_method={method!r}
    )
"""


REFERENCE = Peer("accelerate", _ACCELERATE)
OURS = Peer("nb_accelerate", _OURS, ready=_TEMPLATE_IS_READY)
OURS_WITHOUT_SPARES = Peer(
    "nb_accelerate, no spares", _OURS + _WITHOUT_SPARES, _TEMPLATE_IS_READY, launches_only=True
)
PEERS = (
    REFERENCE,
    Peer("torch.multiprocessing, fork", _torch_multiprocessing("fork")),
    Peer("torch.multiprocessing, spawn", _torch_multiprocessing("spawn"), is_slow=True),
    Peer("Fabric ddp_notebook", _FABRIC),
    Peer("torchrunx", _TORCHRUNX, is_slow=True),
    OURS,
    OURS_WITHOUT_SPARES,
)
