"""Post: how rank 0 sends each rank a batch, of tensors and other things in any nesting."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .batches import Counted
from .nested import Nested, map_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .engine import Engine

__all__ = ["Post"]

_PAGE_BYTES = 64 * 1024
_LENGTH_BYTES = 16
_ALIGNMENT = 16  # the widest element, complex128


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a tensor lies in the letter."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    is_on_device: bool


@dataclass(frozen=True, slots=True)
class _Cover:
    """What travels pickled.

    Attributes:
        parts: for each rank its batch, with slots for tensors; None when there is none for anyone.
        is_failure: rank 0 could not read on.
    """

    parts: list[Any] | None
    is_last: bool
    is_failure: bool = False


class Post:
    """One letter for all ranks at a time: a page, and another one for what does not fit on it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def opened(self) -> Iterator[Post]:
        """On rank 0, while it reads: if that fails, the others hear of it instead of waiting."""
        failed = True
        try:
            yield self
            failed = False
        except GeneratorExit:  # left by `break`, as on the others
            failed = False
            raise
        finally:
            if failed:
                self._send(_Cover(None, is_last=True, is_failure=True), [])

    def deal(self, parts: Sequence[Counted] | None, *, is_last: bool) -> None:
        """Send each rank its part. Rank 0 keeps its own."""
        tensors: list[torch.Tensor] = []
        if parts is None:
            self._send(_Cover(None, is_last), tensors)
            return
        packing = _Packing(tensors)
        packed = [None, *(packing.packed(part) for part in parts[1:])]
        self._send(_Cover(packed, is_last), tensors)

    def receive(self) -> tuple[Counted | None, bool]:
        """This rank's part, and whether it is the last.

        Raises:
            RuntimeError: rank 0 could not read on.
        """
        letter = self._read()
        length = int(letter[:8].view(torch.int64).item())
        cover: _Cover = pickle.loads(letter[8 : 8 + length].numpy().tobytes())
        if cover.is_failure:
            raise RuntimeError(
                f"Rank {self._engine.rank} waits for batches that rank 0 reads for all, but rank 0 "
                f"has failed in reading. What happened is in its own error."
            )
        if cover.parts is None:
            return None, cover.is_last
        body = letter[_aligned(8 + length) :]
        return self._unpacked(cover.parts[self._engine.rank], body), cover.is_last

    def _unpacked(self, part: Any, body: torch.Tensor) -> Counted:  # noqa: ANN401
        def taken(leaf: Nested) -> Nested:
            if type(leaf) is not _Slot:
                return leaf
            size = torch.Size(leaf.shape).numel() * leaf.dtype.itemsize
            # A copy: the letter, with the others' parts, need not be kept.
            own = body[leaf.start : leaf.start + size].clone().view(leaf.dtype).view(leaf.shape)
            return own.to(self._engine.device) if leaf.is_on_device else own

        batch, size, real = part
        return Counted(map_leaves(taken, batch), size, real)

    # ------------------------------------------------------------ on the wire
    def _send(self, cover: _Cover, tensors: Sequence[torch.Tensor]) -> None:
        head = pickle.dumps(cover)
        parts = [
            _bytes_of(torch.tensor([len(head)])),
            torch.frombuffer(bytearray(head), dtype=torch.uint8),
        ]
        total = _aligned(8 + len(head)) + sum(_aligned(len(t)) for t in tensors)
        letter = torch.zeros(max(total + _LENGTH_BYTES, _PAGE_BYTES), dtype=torch.uint8)
        letter[:8] = _bytes_of(torch.tensor([total]))
        start = _LENGTH_BYTES
        for part in parts:
            letter[start : start + len(part)] = part
            start += len(part)
        start = _LENGTH_BYTES + _aligned(8 + len(head))
        for tensor in tensors:
            letter[start : start + len(tensor)] = tensor
            start += _aligned(len(tensor))
        self._shared(letter[:_PAGE_BYTES])
        if len(letter) > _PAGE_BYTES:
            self._shared(letter[_PAGE_BYTES:])

    def _read(self) -> torch.Tensor:
        page = self._shared(torch.empty(_PAGE_BYTES, dtype=torch.uint8))
        total = int(page[:8].view(torch.int64).item())
        missing = total + _LENGTH_BYTES - _PAGE_BYTES
        if missing > 0:
            page = torch.cat([page, self._shared(torch.empty(missing, dtype=torch.uint8))])
        return page[_LENGTH_BYTES : _LENGTH_BYTES + total]

    def _shared(self, data: torch.Tensor) -> torch.Tensor:
        wire = data.to(self._engine.header_device)
        self._engine.broadcast(wire, 0)
        return wire.cpu()


class _Packing:
    """Takes tensors out of batches."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._start = 0

    def packed(self, part: Counted) -> tuple[Any, int | None, int | None]:
        """The part without its tensors."""
        return map_leaves(self._slot, part.batch), part.size, part.real

    def _slot(self, leaf: Nested) -> Nested:
        if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or leaf.is_quantized:
            return leaf  # pickled
        raw = _bytes_of(leaf.detach().cpu().contiguous())
        slot = _Slot(self._start, leaf.dtype, tuple(leaf.shape), leaf.device.type != "cpu")
        self._tensors.append(raw)
        self._start += _aligned(len(raw))
        return slot


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
