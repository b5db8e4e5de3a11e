"""How text, numbers and ranks are written."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["format_number", "plain", "rank_tag"]

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\].*?(?:\x07|\x1b\\)"  # hyperlinks, window titles
    r"|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]"
)


def plain(text: str) -> str:
    """`text` without terminal colours, cursor movements and other control characters."""
    return _CONTROL.sub("", text)


def format_number(value: float) -> str:
    """Four significant digits; whole numbers whole."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def rank_tag(ranks: Sequence[int]) -> str:
    """What marks the lines of these ranks, such as "[rank 0]" or "[ranks 0-3,6]"."""
    ordered = sorted(ranks)
    firsts = [rank for rank in ordered if rank - 1 not in ordered]
    lasts = [rank for rank in ordered if rank + 1 not in ordered]
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True)]
    return f"[rank{'' if len(ordered) == 1 else 's'} {','.join(spans)}]"
