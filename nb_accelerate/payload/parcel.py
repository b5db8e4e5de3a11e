"""Parcels: a pickle whose big buffers lie in one shared-memory file that every rank maps.

The sender copies each buffer once, whatever the number of ranks. A rank maps the file privately:
it may write, and neither the kernel nor another rank sees that.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nb_accelerate.messages import Parcel
from nb_accelerate.payload.pickling import BIG_BYTES, Pickled, pickled
from nb_accelerate.payload.storages import loading_onto

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

__all__ = ["Packed", "pack", "sealed", "unpack"]


@dataclass(frozen=True, slots=True)
class Packed:
    """A parcel with the file that its spans lie in: close it once it has been sent to all."""

    parcel: Parcel
    filenames: frozenset[str]
    """co_filename of each code object that travels by value: see `cell_sources`."""
    descriptors: list[int] = field(default_factory=list)
    """The file's, while it is open."""

    @property
    def fd(self) -> int | None:
        """The file's descriptor, open until `close`; None when the parcel has no spans."""
        return self.descriptors[0] if self.descriptors else None

    def close(self) -> None:
        """Let go of the file; it lives on where it was mapped."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def __enter__(self) -> Packed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def pack(obj: object, *, redefine_classes: bool = True) -> Packed:
    """Pickle `obj` by value; buffers of 64 KiB and more are copied once, into shared memory.

    `redefine_classes` is for the way from the kernel to a worker: see `pickled`.

    Raises:
        Exception: whatever the pickling of `obj` raises; `pack_call` and `pack_value` name the
            culprit instead.
    """
    return sealed(pickled(obj, redefine_classes=redefine_classes))


def sealed(content: Pickled) -> Packed:
    """Write what is big into a file of its own."""
    is_big = len(content.body) > BIG_BYTES
    aside = (*content.buffers, memoryview(content.body)) if is_big else content.buffers
    if not aside:
        return Packed(Parcel(content.body), content.filenames)
    fd = _nameless_file()
    try:
        spans = _write(fd, aside)
    except BaseException:
        os.close(fd)
        raise
    return Packed(Parcel(b"" if is_big else content.body, spans), content.filenames, [fd])


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nb_accelerate")
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())


def _write(fd: int, buffers: Iterable[memoryview]) -> tuple[tuple[int, int], ...]:
    """Each buffer at the start of a page; its (offset, length)."""
    spans = []
    offset = 0
    for buffer in buffers:
        sent = 0
        while sent < buffer.nbytes:  # Linux takes 2 GiB at a time
            sent += os.pwrite(fd, buffer[sent:], offset + sent)
        spans.append((offset, sent))
        offset += -(-sent // mmap.PAGESIZE) * mmap.PAGESIZE
    return tuple(spans)


def unpack(parcel: Parcel, fd: int | None, *, device: str | None = None) -> object:
    """The object again. Closes `fd`.

    Arrays and tensors of 64 KiB and more lie in the sender's memory, copied page by page as they
    are written; they keep it alive. Tensors that were on an accelerator come to `device`, or to
    the CPU when that is None.

    Raises:
        Exception: whatever the unpickling of the object raises.
    """
    try:
        buffers = _mapped(parcel.spans, fd)
    finally:
        if fd is not None:
            os.close(fd)
    body = parcel.body or buffers.pop()
    with loading_onto(device):
        return pickle.loads(body, buffers=buffers)


def _mapped(spans: tuple[tuple[int, int], ...], fd: int | None) -> list[memoryview]:
    if not spans or fd is None:
        return []
    length = sum(spans[-1])
    # One mapping for all: each one made by Python holds a descriptor of its own.
    memory = memoryview(
        mmap.mmap(fd, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    )
    return [memory[offset : offset + size] for offset, size in spans]
