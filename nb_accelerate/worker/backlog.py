"""Records on their way to the kernel, merged at the source when it cannot keep up."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from nb_accelerate.messages import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Backlog", "merged", "snapshot"]

_MOST_RECORDS = 4096
_VALUES_PER_BATCH = 1000


def snapshot(values: Mapping[str, object]) -> dict[str, Any]:
    """The values as they are now: numbers, or copies of tensors that live on an accelerator.

    Reading such a tensor would wait for the device; copying it there does not. What is no number
    (text, pictures) is for trackers, not for the cell's charts.
    """
    return {name: kept for name, value in values.items() if (kept := _kept(value)) is not None}


def _kept(value: Any) -> Any:  # noqa: ANN401 - a tensor, a number, or neither
    if isinstance(value, (float, int)):
        return float(value)
    is_on_cpu = getattr(value, "is_cpu", None)  # a tensor's quickest property
    try:
        if is_on_cpu is None:
            return float(value)
        return value.item() if is_on_cpu else _copied(value)
    except (TypeError, ValueError, RuntimeError):  # no number, or more than one
        return None


def _copied(value: Any) -> Any:  # noqa: ANN401 - a tensor
    return value.detach().clone() if value.numel() == 1 else None


def merged(earlier: Metric, later: Metric) -> Metric:
    """Two records of the same names as one: the mean of all that they stand for."""
    count = earlier.merged + later.merged
    values = {
        name: (earlier.values[name] * earlier.merged + later.values[name] * later.merged) / count
        for name in later.values
    }
    return Metric(later.step, later.time, values, count)


class Backlog:
    """What was logged and has not been sent; never more than some thousand records."""

    def __init__(self) -> None:
        self.fresh: deque[tuple[int, float, dict[str, Any]]] = deque()
        self.records: list[Metric] = []

    def take_in(self) -> None:
        """Read what was logged (waiting for the device where need be)."""
        while self.fresh:
            step, when, values = self.fresh.popleft()
            self.records.append(
                Metric(step, when, {name: float(value) for name, value in values.items()})
            )
        if len(self.records) > _MOST_RECORDS:
            self.records = _halved(self.records)

    def next_batch(self) -> tuple[Metric, ...]:
        """The oldest records, few enough to fit a socket's buffer."""
        size = max(1, _VALUES_PER_BATCH // max(1, len(self.records[0].values)))
        batch = tuple(self.records[:size])
        del self.records[:size]
        return batch


def _halved(records: list[Metric]) -> list[Metric]:
    """Neighbours of the same names become one."""
    kept: list[Metric] = []
    waiting: dict[frozenset[str], int] = {}
    for record in records:
        names = frozenset(record.values)
        if (at := waiting.pop(names, None)) is not None:
            kept[at] = merged(kept[at], record)
        else:
            waiting[names] = len(kept)
            kept.append(record)
    return kept
