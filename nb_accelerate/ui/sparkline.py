"""Curve: a metric over its steps in bounded memory, drawn in the height of a line."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from nb_accelerate.record import format_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Curve"]

POINTS = 80
WIDTH, HEIGHT, MARGIN = 140, 26, 2
# An image knows nothing of the page's colours: this one is readable on white and on black.
LINE, BAND = "#3b82f6", "#3b82f6"


@dataclass(slots=True)
class _Point:
    """The finite values of some consecutive steps, over all ranks."""

    total: float
    count: int
    low: float
    high: float

    @property
    def mean(self) -> float:
        return self.total / self.count

    def join(self, other: _Point) -> None:
        self.total += other.total
        self.count += other.count
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)


class Curve:
    """The mean and the band of a metric; neighbouring steps are joined as they become many.

    Attributes:
        newest: each rank's (step, value), at the newest step that it logged.
    """

    def __init__(self) -> None:
        self.newest: dict[int, tuple[int, float]] = {}
        self._points: dict[int, _Point] = {}
        self._steps_per_point = 1

    def add(self, rank: int, step: int, value: float) -> None:
        """Take a value of a rank."""
        if rank not in self.newest or step >= self.newest[rank][0]:
            self.newest[rank] = (step, value)
        if math.isfinite(value):
            self._join(self._points, step // self._steps_per_point, _Point(value, 1, value, value))
            while len(self._points) > POINTS:
                self._halve()

    @property
    def step(self) -> int:
        """The newest."""
        return max(step for step, _ in self.newest.values())

    @property
    def values(self) -> list[float]:
        """Each rank's newest value."""
        return [value for _, value in self.newest.values()]

    def image(self, name: str) -> str:
        """An <img> element, which a notebook keeps even when it does not trust what it shows."""
        points = sorted(self._points.items())
        if len(points) < 2:
            return ""
        first, last = (format_number(points[at][1].mean) for at in (0, -1))
        told = escape(f"{name} from {first} to {last}", quote=True)
        data = base64.b64encode(_svg(points).encode()).decode()
        source = f"data:image/svg+xml;base64,{data}"
        return f'<img src="{source}" width="{WIDTH}" height="{HEIGHT}" alt="{told}" title="{told}">'

    def _halve(self) -> None:
        halved: dict[int, _Point] = {}
        for at, point in self._points.items():
            self._join(halved, at // 2, point)
        self._points = halved
        self._steps_per_point *= 2

    @staticmethod
    def _join(points: dict[int, _Point], at: int, point: _Point) -> None:
        if at in points:
            points[at].join(point)
        else:
            points[at] = point


def _svg(points: Sequence[tuple[int, _Point]]) -> str:
    x = _scale(points[0][0], points[-1][0], MARGIN, WIDTH - MARGIN)
    low = min(point.low for _, point in points)
    high = max(point.high for _, point in points)
    y = _scale(low, high, HEIGHT - MARGIN, MARGIN)
    means = [f"{x(at):.1f},{y(point.mean):.1f}" for at, point in points]
    tops = [f"{x(at):.1f},{y(point.high):.1f}" for at, point in points]
    bottoms = [f"{x(at):.1f},{y(point.low):.1f}" for at, point in reversed(points)]
    band = f'<polygon points="{" ".join(tops + bottoms)}" fill="{BAND}" fill-opacity=".25"/>'
    line = f'<polyline points="{" ".join(means)}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{band}{line}</svg>'


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low
    if not span > 0 or math.isinf(span):
        return lambda _: (start + end) / 2
    return lambda value: start + (value - low) / span * (end - start)
