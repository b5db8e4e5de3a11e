"""The cells' source lines, so that tracebacks in the workers show the user's own."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["cell_sources", "label_of", "restore_sources"]


def cell_sources(filenames: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(file name → text, file name → what the user calls it, such as "Cell In[7]").

    Only of code that lies in no file: a worker reads files itself. Cells have a label in IPython
    alone.
    """
    sources = {
        filename: "".join(lines)
        for filename in sorted(filenames)
        if not Path(filename).exists() and (lines := linecache.getlines(filename))
    }
    return sources, {name: label for name in sources if (label := label_of(name)) != name}


def label_of(filename: str) -> str:
    """What the user calls a file: "Cell In[7]" for a cell, else the file name itself."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # IPython 7 has no such method.
    describe = getattr(getattr(shell, "compile", None), "format_code_name", None)
    words = describe(filename) if describe is not None else None
    return " ".join(words) if words else filename


def restore_sources(sources: Mapping[str, str]) -> None:
    """Make `linecache`, and so tracebacks and `inspect.getsource`, know these texts."""
    for filename, text in sources.items():
        # Without a modification time, linecache.checkcache does not look for a file.
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
