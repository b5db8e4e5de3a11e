r"""Bytes of a rank's pipe become whole lines.

A pipe is read wherever the kernel's loop happens to be: in the middle of a line, of a character,
of an escape sequence. A progress bar is a row that is written again and again after a carriage
return; nested bars climb up and down between rows. The assembler follows the cursor closely enough
to tell a line that stays ("\n") from one that the next overwrites ("\r").
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Literal

from nb_accelerate.messages import Output

if TYPE_CHECKING:
    from nb_accelerate.messages import Stream

__all__ = ["LineAssembler"]

SILENCE_SECONDS = 0.02
"""Text without a newline is passed on after this long without more of it."""
OPEN_SECONDS = 0.1
"""... or after this long, for a rank that prints dot after dot."""
PIECE_CHARACTERS = 64 * 1024
"""A line longer than this is passed on in pieces."""
ROWS_ABOVE = 8
"""So many rows of nested bars are told apart; tqdm users rarely nest more than three."""

_CLIMB = "\x1b[A"
_BREAKS = re.compile(r"(\n|\r|\x1b\[A)")
_UNDECIDED = re.compile(r"(?:\r|\x1b\[?)\Z")
"""What ends a read and cannot be judged before the next one: half of "\\r\\n" or of a climb."""


class LineAssembler:
    """One stream of one rank. Times are those of `time.monotonic()`; memory is bounded."""

    def __init__(self, rank: int, stream: Stream) -> None:
        self._rank = rank
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._undecided = ""
        self._text = ""  # of the cursor's row, since its last carriage return
        self._row = ""  # what that row held before its last carriage return
        self._overwriting = False  # the cursor's row has seen a carriage return
        self._shown = False  # the beginning of the cursor's row has been passed on
        self._told: dict[int, str] = {}  # the "\r" line passed on last, by its row's depth
        self._above: list[str] = []  # ended rows of bars that the cursor may climb back to
        self._depth = 0  # of the row that the newest Output came from
        self._now = 0.0
        self._fed = 0.0
        self._opened: float | None = None
        self._outputs: list[Output] = []

    def feed(self, data: bytes, now: float) -> list[Output]:
        """Take what was read; return the lines that it completes, in order."""
        self._now = self._fed = now
        text = (self._undecided + self._decoder.decode(data)).replace("\r\n", "\n")
        undecided = _UNDECIDED.search(text)
        self._undecided = undecided.group() if undecided else ""
        if undecided:
            text = text[: undecided.start()]
        if self._overwriting or self._above or "\r" in text or _CLIMB in text:
            self._follow(text)
        else:
            self._split(text)
        return self._taken()

    def flush(self, now: float, *, force: bool = False) -> list[Output]:
        """Pass on text that has waited long enough; `force` when the stream has ended."""
        self._now = now
        if force:
            self._end_of_stream()
        elif self._silent(now):
            self._settle()
        elif self._opened is not None and now - self._opened >= OPEN_SECONDS:
            self._pass_on_open_text()
        return self._taken()

    def deadline(self) -> float | None:
        """When `flush` must be called next; None while nothing waits."""
        if not (self._undecided or self._above or self._untold()):
            return None
        silence = self._fed + SILENCE_SECONDS
        return silence if self._opened is None else min(silence, self._opened + OPEN_SECONDS)

    # ------------------------------------------------------------ without bars: fast
    def _split(self, text: str) -> None:
        whole = self._text + text
        *lines, rest = whole.split("\n")
        if lines:
            self._shown = False
        if len(whole) <= PIECE_CHARACTERS:
            rank, stream, now = self._rank, self._stream, self._now
            self._outputs += [Output(rank, stream, line, "\n", now) for line in lines]
            self._text = rest
            return
        for line in lines:
            self._emit(self._cut(line), "\n")
        self._text = self._cut(rest)

    def _cut(self, line: str) -> str:
        """Pass on all but the last piece of a long line; return the last piece."""
        while len(line) > PIECE_CHARACTERS:
            self._emit(line[:PIECE_CHARACTERS], "")
            line = line[PIECE_CHARACTERS:]
        return line

    # ------------------------------------------------------------ with bars: follow the cursor
    def _follow(self, text: str) -> None:
        for part in _BREAKS.split(text):
            if part == "\n":
                self._line_feed()
            elif part == "\r":
                self._carriage_return()
            elif part == _CLIMB:
                self._climb()
            elif part:
                self._write(part)

    def _write(self, part: str) -> None:
        if not self._overwriting:
            self._release_rows_above()
        self._text += part
        if len(self._text) > PIECE_CHARACTERS:
            self._text = self._cut(self._text)

    def _line_feed(self) -> None:
        line = self._text or self._row
        if self._overwriting or self._above:
            self._above.append(line)
            if len(self._above) > ROWS_ABOVE:
                self._emit(self._above.pop(0), "\n")
        else:
            self._emit(line, "\n")
        self._told.pop(len(self._above), None)
        self._stand_in("", overwriting=False)

    def _carriage_return(self) -> None:
        if self._text:
            self._tell()
        elif self._shown:
            self._emit("", "\r")  # what was passed on as open text is overwritten now
        self._stand_in(self._text or self._row, overwriting=True)

    def _climb(self) -> None:
        if self._overwriting:
            self._tell()
        if self._above:
            self._text = self._above.pop()
            self._tell()
            self._stand_in(self._text, overwriting=True)

    def _stand_in(self, row: str, *, overwriting: bool) -> None:
        self._row, self._text = row, ""
        self._overwriting = overwriting
        self._shown = False

    def _release_rows_above(self) -> None:
        for line in self._above:
            self._emit(line, "\n")
        self._above.clear()
        self._told.clear()

    # ------------------------------------------------------------ passing on
    def _silent(self, now: float) -> bool:
        return self.deadline() is not None and now - self._fed >= SILENCE_SECONDS

    def _untold(self) -> bool:
        told = self._overwriting and self._text == self._told.get(len(self._above))
        return bool(self._text) and not told

    def _settle(self) -> None:
        undecided, self._undecided = self._undecided, ""
        self._follow(undecided)
        self._release_rows_above()
        if self._overwriting:
            self._tell()
        else:
            self._pass_on_open_text()

    def _pass_on_open_text(self) -> None:
        if self._text and not self._overwriting:
            self._emit(self._text, "")
            self._text = ""
            self._shown = True

    def _end_of_stream(self) -> None:
        undecided, self._undecided = self._undecided, ""
        self._follow(undecided + self._decoder.decode(b"", final=True))
        self._release_rows_above()
        line = self._text or self._row
        if self._overwriting and line.strip():
            self._emit(line, "\n")  # how far a bar had come when its rank ended
            self._stand_in("", overwriting=False)
        self._pass_on_open_text()

    def _tell(self) -> None:
        depth = len(self._above)
        if self._text != self._told.get(depth, ""):
            self._told[depth] = self._text
            self._emit(self._text, "\r")

    def _emit(self, text: str, ending: Literal["\n", "\r", ""]) -> None:
        depth = len(self._above)
        newest = self._outputs[-1] if self._outputs else None
        if ending == "\r" and newest and newest.ending == "\r" and depth == self._depth:
            self._outputs.pop()  # nobody can see more of one bar than its newest state
        self._outputs.append(Output(self._rank, self._stream, text, ending, self._now))
        self._depth = depth

    def _taken(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        if not self._text or self._overwriting:
            self._opened = None
        elif outputs or self._opened is None:
            self._opened = self._now
        return outputs
