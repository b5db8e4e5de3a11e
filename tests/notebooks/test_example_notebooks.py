"""The example notebooks run from top to bottom, as in a notebook without a browser."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "example_notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_is_an_example_notebook() -> None:
    assert NOTEBOOKS != []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_example_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent), prepend=os.pathsep)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    failing = [cell for cell in cells if any(o.output_type == "error" for o in cell.outputs)]
    assert all("raises-exception" in cell.metadata.get("tags", []) for cell in failing)
    stored = [
        len(cell.outputs) > 0
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
    ]
    assert [len(cell.outputs) > 0 for cell in cells] == stored, "it is not stored as it runs"
