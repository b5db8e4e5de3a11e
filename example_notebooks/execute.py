"""Run a notebook from top to bottom, show what its cells print, and store it executed.

python example_notebooks/execute.py 01_first_launch.ipynb

Ends with 1, and leaves the stored notebook as it was, when a cell fails that is not tagged
`raises-exception`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from nb_accelerate import runs

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LINES_SHOWN = 12
_SECONDS_PER_CELL = 300


def main() -> int:
    """Execute the notebook named on the command line."""
    parser = argparse.ArgumentParser(description="Run a notebook and store it executed.")
    parser.add_argument("notebook", type=Path)
    path: Path = parser.parse_args().notebook
    notebook = nbformat.read(path, as_version=4)
    began, kernels = time.monotonic(), set[int]()
    print(f"{path}: {len(notebook.cells)} cells", flush=True)
    try:
        _client(notebook, path.parent, kernels).execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        why = "" if isinstance(error, CellExecutionError) else f" {error}"
        print(f"\n{path} has failed; the stored copy is as it was.{why}", file=sys.stderr)
        return 1
    _store(notebook, path)
    _tell_metrics(kernels)
    print(f"\nDone in {time.monotonic() - began:.0f} s. Executed notebook: {path.resolve()}")
    return 0


def _client(notebook: nbformat.NotebookNode, folder: Path, kernels: set[int]) -> NotebookClient:
    """Speaks while it executes, and notes its kernel's process id in `kernels`."""
    total = len(notebook.cells)

    def announce(cell: nbformat.NotebookNode, cell_index: int) -> None:
        if cell.cell_type == "code":
            print(f"\n[{cell_index + 1}/{total}] {_headline(cell.source)}", flush=True)

    def note(**_: object) -> None:
        kernels.add(client.km.provisioner.pid)

    def show(cell: nbformat.NotebookNode, **_: object) -> None:
        for line in _tail(cell.outputs):
            print(f"    {line}", flush=True)

    client = NotebookClient(
        notebook,
        timeout=_SECONDS_PER_CELL,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        on_notebook_start=note,
        on_cell_execute=announce,
        on_cell_executed=show,
    )
    return client


def _headline(source: str) -> str:
    """The cell's first line that says something."""
    lines = [line for line in source.splitlines() if line.strip()]
    return lines[0] if lines else ""


def _tail(outputs: list[nbformat.NotebookNode]) -> list[str]:
    """The last lines of what a cell shows, as text."""
    text = "".join(_as_text(output) for output in outputs)
    lines = [_visible(line) for line in text.rstrip().split("\n")] if text.strip() else []
    hidden = len(lines) - _LINES_SHOWN
    return [f"… {hidden} lines before", *lines[-_LINES_SHOWN:]] if hidden > 0 else lines


def _visible(line: str) -> str:
    """The line without colours, and without what a progress bar has overwritten."""
    return _COLOURS.sub("", line).rstrip("\r").rpartition("\r")[2]


def _as_text(output: nbformat.NotebookNode) -> str:
    match output.output_type:
        case "stream":
            return str(output.text)
        case "error":
            return "\n".join(output.traceback) + "\n"
        case _:
            return str(output.data.get("text/plain", "")) + "\n"


def _tell_metrics(kernels: set[int]) -> None:
    """The last value of each metric, mean over the ranks, of every run of these kernels."""
    print("\nLast metrics of each run:")
    for run in runs():
        if run.spec.get("pid") in kernels and run.metrics.names:
            told = ", ".join(f"{name} {run.metrics.last(name):.4g}" for name in run.metrics.names)
            print(f"    {run.name} ({run.status}): {told}")


def _store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Replace the file at once, so that an interrupt leaves a whole notebook."""
    partial = path.with_suffix(".partial")
    nbformat.write(notebook, partial)
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
