"""Places in code as the user knows them: "Cell In[7], line 12, in train". Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nb_accelerate.messages import Frame

__all__ = ["place_of"]


def place_of(stack: Sequence[Frame], labels: Mapping[str, str]) -> str:
    """Where the innermost frame stands, with its source; cells by their numbers."""
    if not stack:
        return "an unknown place"
    # The innermost cell tells more than a library or a file below it.
    frame = next((f for f in reversed(stack) if f.filename in labels), stack[-1])
    name = labels.get(frame.filename) or Path(frame.filename).name
    source = f": {frame.source}" if frame.source else ""
    function = f", in {frame.function}" if not frame.function.startswith("<") else ""
    return f"{name}, line {frame.line}{function}{source}"
