"""Board: what of a run is worth looking at while it goes on, and the picture of it.

The picture is plain HTML: it stands in a saved notebook as it stood in the live one, also where
scripts and style sheets are not trusted. Everything that comes from the user's code is escaped.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from nb_accelerate.messages import (
    Left,
    Metrics,
    Output,
    Progress,
    Raised,
    RankEnded,
    Ready,
    Returned,
)
from nb_accelerate.record import Status, format_number, status_after
from nb_accelerate.ui.bars import PrintedBars, Track
from nb_accelerate.ui.sparkline import Curve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nb_accelerate.messages import RunMessage
    from nb_accelerate.record import MetricTable

__all__ = ["Board", "Bundle"]

Bundle: TypeAlias = dict[str, str]
"""Media type → the same thing in it."""

MOST_METRICS = 40
MOST_TRACKS = 6
MOST_RANK_COLUMNS = 8
KEPT_TRACKS = 200

GREY = "var(--jp-content-font-color2, #757575)"
GREEN = "var(--jp-success-color1, #388e3c)"
RED = "var(--jp-error-color1, #d32f2f)"
BLUE = "var(--jp-brand-color1, #1976d2)"
_COLOURS: dict[Status, str] = {
    "starting": GREY,
    "running": BLUE,
    "returned": GREEN,
    "raised": RED,
    "left": GREY,
    "died": RED,
}


class Board:
    """Metrics, loops and ranks of one run.

    Attributes:
        changed: since `drawn` was last called.
    """

    def __init__(self, num_ranks: int) -> None:
        self.changed = False
        self._status: dict[int, Status] = dict.fromkeys(range(num_ranks), "starting")
        self._curves: dict[str, Curve] = {}
        self._tracks: dict[str, Track] = {}
        self._bars = PrintedBars()
        self._summary = ""
        self._ok: bool | None = None

    @classmethod
    def of(cls, metrics: MetricTable, *, num_ranks: int) -> Board:
        """The board of a run whose metrics are known."""
        board = cls(num_ranks)
        for name in metrics.names:
            curve = board._curves.setdefault(name, Curve())
            steps = metrics.steps(name)
            for rank, values in metrics.by_rank(name).items():
                for step, value in zip(steps, values, strict=True):
                    curve.add(rank, step, value)
        return board

    @property
    def has_content(self) -> bool:
        """There is more to see than what the ranks print."""
        return bool(self._curves or self._tracks or len(self._bars))

    def show(self, message: RunMessage) -> None:
        """Take the next message into account."""
        match message:
            case Metrics(rank=rank):
                self._take_metrics(rank, message)
            case Progress(description=description):
                self._take_progress(description, message)
            case Output():
                self.changed |= self._bars.take(message)
            case Ready() | Returned() | Raised() | Left() | RankEnded():
                self._move(message)
            case _:
                pass  # the text tells it

    def end(self, summary: str, *, ok: bool) -> None:
        """The run has ended so."""
        self._summary, self._ok = summary, ok
        self.changed = True

    def drawn(self) -> Bundle:
        """The picture now."""
        self.changed = False
        return {"text/html": self.html(), "text/plain": self.text()}

    # ------------------------------------------------------------ taking in
    def _take_metrics(self, rank: int, metrics: Metrics) -> None:
        for record in metrics.records:
            for name, value in record.values.items():
                self._curves.setdefault(name, Curve()).add(rank, record.step, value)
        self.changed = True

    def _take_progress(self, description: str, progress: Progress) -> None:
        self._tracks.setdefault(description, Track()).take(progress)
        if len(self._tracks) > KEPT_TRACKS:
            del self._tracks[next(iter(self._tracks))]
        self.changed = True

    def _move(self, message: Ready | Returned | Raised | Left | RankEnded) -> None:
        rank = message.local_rank if isinstance(message, RankEnded) else message.rank
        self._status[rank] = status_after(self._status.get(rank, "starting"), message)
        if isinstance(message, Left | RankEnded):
            self._bars.leave(rank)
        self.changed = True

    # ------------------------------------------------------------ as text
    def text(self) -> str:
        """For a terminal, and for what does not show HTML."""
        lines = [f"{name}  [{track.text()}]" for name, track in self._shown_tracks()]
        lines += [f"{self._of_rank(bar.rank)}{bar.text}" for bar in self._bars]
        lines += self._metric_lines()
        return "\n".join([*lines, self._summary]).strip("\n")

    def _metric_lines(self) -> list[str]:
        if not self._curves:
            return []
        head = ["metric", "step", "mean", "min – max"][: 4 if self._many else 3]
        rows = [head, *(self._cells(name, curve) for name, curve in self._shown_curves())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in rows
        ]

    def _cells(self, name: str, curve: Curve) -> list[str]:
        values = curve.values
        cells = [name, str(curve.step), format_number(sum(values) / len(values))]
        return [*cells, _band(values)] if self._many else cells

    # ------------------------------------------------------------ as HTML
    def html(self) -> str:
        """One element, without scripts and style sheets."""
        parts = [
            self._ranks_html(),
            *(_track_html(name, track, self._colour) for name, track in self._shown_tracks()),
            self._more(len(self._tracks) - MOST_TRACKS, "finished loops"),
            *(self._bar_html(bar.rank, bar.text, bar.fraction) for bar in self._bars),
            self._metrics_html(),
            self._more(len(self._curves) - MOST_METRICS, "metrics: run.metrics"),
            self._summary_html(),
        ]
        return f'<div class="nb-accelerate">{"".join(parts)}</div>'

    def _ranks_html(self) -> str:
        if self._ok:
            return ""
        dots = "".join(
            f'<span title="rank {rank}: {status}" style="color: {_COLOURS[status]}">●</span>'
            for rank, status in sorted(self._status.items())
        )
        return f"<div>{dots} <small>{escape(_told(self._status))}</small></div>"

    def _bar_html(self, rank: int, text: str, fraction: float | None) -> str:
        words = f"<code>{escape(self._of_rank(rank) + text)}</code>"
        if fraction is None:
            return f"<div>{words}</div>"
        return f"<div>{_progress_html(fraction, self._colour, wide=80)} {words}</div>"

    def _metrics_html(self) -> str:
        if not self._curves:
            return ""
        ranks = self._rank_columns()
        band = ["min – max"] if self._many else []
        names = ["metric", "", "step", "mean" if self._many else "value", *band]
        head = "".join(f"<th>{name}</th>" for name in [*names, *(f"rank {r}" for r in ranks)])
        rows = "".join(self._row_html(name, curve, ranks) for name, curve in self._shown_curves())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def _row_html(self, name: str, curve: Curve, ranks: Sequence[int]) -> str:
        words, *numbers = (escape(cell) for cell in self._cells(name, curve))
        newest = curve.newest
        last = [format_number(newest[rank][1]) if rank in newest else "" for rank in ranks]
        cells = "".join(f"<td>{cell}</td>" for cell in [*numbers, *last])
        left = 'style="text-align: left"'
        return f"<tr><th {left}>{words}</th><td>{curve.image(name)}</td>{cells}</tr>"

    def _summary_html(self) -> str:
        if not self._summary:
            return ""
        colour, mark = (GREEN, "✓") if self._ok else (RED, "✗")
        words = f"<small>{escape(self._summary)}</small>"
        return f'<div><span style="color: {colour}">{mark}</span> {words}</div>'

    # ------------------------------------------------------------ what is shown
    @property
    def _many(self) -> bool:
        return len(self._status) > 1

    @property
    def _colour(self) -> str:
        return RED if self._ok is False else BLUE

    def _of_rank(self, rank: int) -> str:
        return f"[rank {rank}] " if self._many else ""

    def _rank_columns(self) -> list[int]:
        ranks = sorted({rank for curve in self._curves.values() for rank in curve.newest})
        return ranks if self._many and len(ranks) <= MOST_RANK_COLUMNS else []

    def _shown_curves(self) -> Iterator[tuple[str, Curve]]:
        yield from list(self._curves.items())[:MOST_METRICS]

    def _shown_tracks(self) -> Iterator[tuple[str, Track]]:
        """Those under way, and as many of the newest finished ones as there is room for."""
        under_way = sum(not track.finished for track in self._tracks.values())
        room = max(0, MOST_TRACKS - under_way)
        finished = [name for name, track in self._tracks.items() if track.finished]
        hidden = set(finished[: len(finished) - room])
        shown = [item for item in self._tracks.items() if item[0] not in hidden]
        yield from shown[-MOST_TRACKS:]

    @staticmethod
    def _more(count: int, what: str) -> str:
        return f"<div><small>… {count} more {what}</small></div>" if count > 0 else ""


def _track_html(name: str, track: Track, colour: str) -> str:
    told = "; ".join(f"rank {rank}: {done}" for rank, done in track.by_rank.items())
    bar = _progress_html(track.fraction, GREEN if track.finished else colour)
    words = f"{escape(name)} <small>[{escape(track.text())}]</small>"
    return f'<div title="{escape(told, quote=True)}">{bar} {words}</div>'


def _progress_html(fraction: float | None, colour: str, *, wide: int = 300) -> str:
    value = "" if fraction is None else f' value="{fraction:.4f}"'
    style = f"width: {wide}px; vertical-align: middle; accent-color: {colour}"
    return f'<progress max="1"{value} style="{style}"></progress>'


def _band(values: Sequence[float]) -> str:
    if any(map(math.isnan, values)):
        return "nan"
    return f"{format_number(min(values))} – {format_number(max(values))}"


def _told(status: dict[int, Status]) -> str:
    """Such as "2 ranks running" or "1 rank returned, 1 rank running"."""
    counts = {each: list(status.values()).count(each) for each in _COLOURS}
    told = [f"{n} rank{'s' if n > 1 else ''} {each}" for each, n in counts.items() if n]
    return ", ".join(told)
