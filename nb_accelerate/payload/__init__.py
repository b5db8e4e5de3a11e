"""Functions and data by value, between the kernel and its workers.

    pack, unpack                   any object ↔ a pickle, with its big buffers in shared memory
    pack_call, pack_value          the same, refused with the name of what cannot travel
    pack_error, unpack_error       an exception with its class, attributes, chain and traceback
    cell_sources, restore_sources  the cells' source lines, for tracebacks in the workers
    explain                        what a call captures, how big it is, and what cannot travel
    track_classes                  before a fork: its copies' classes are this process's own
    attempt                        run what a user's class defines, whatever that does
    install_by_value_pickling      the same for the worker's own children (DataLoader workers)

Reading order: pickling (what is pickled how), storages (torch), parcel (shared memory), captures
(what belongs to what), calls (refusals), report, failures, sources, children.
"""

from __future__ import annotations

from nb_accelerate.payload.attempt import attempt
from nb_accelerate.payload.calls import pack_call, pack_value
from nb_accelerate.payload.children import install_by_value_pickling
from nb_accelerate.payload.failures import pack_error, unpack_error
from nb_accelerate.payload.parcel import Packed, pack, unpack
from nb_accelerate.payload.pickling import track_classes
from nb_accelerate.payload.report import ClosureReport, ClosureRow, explain
from nb_accelerate.payload.sources import cell_sources, restore_sources

__all__ = [
    "ClosureReport",
    "ClosureRow",
    "Packed",
    "attempt",
    "cell_sources",
    "explain",
    "install_by_value_pickling",
    "pack",
    "pack_call",
    "pack_error",
    "pack_value",
    "restore_sources",
    "track_classes",
    "unpack",
    "unpack_error",
]
