"""Words and paths that belong to some machine or to the making, not to the project."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# Each has one letter in brackets, so that this file is not a finding of its own.
STRANGERS = re.compile(
    r"/wor[k]/|/roo[t]/|\.pyen[v]/|site-package[s]/|"
    r"registry\.npm[j]s|pypi\.or[g]|files\.pythonhoste[d]|"
    r"sub-?agen[t]|\bC[E]O\b|issues (file|close|sho[w])|before-sto[p]"
)

NOT_TEXT = {".png", ".woff2", ".ico", ".gz", ".bin", ".pt", ".npz", ".safetensors"}


@pytest.fixture(scope="module")
def files(root: Path) -> list[Path]:
    """All files of the project: what git tracks or would, else what lies there."""
    if shutil.which("git") and (root / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        names = [name for name in listing.stdout.split("\0") if name]
        return [path for name in names if (path := root / name).is_file()]
    pytest.skip("the project's files are known by git, which is not here")


def test_no_file_names_a_machine_or_how_it_came_to_be(root: Path, files: list[Path]) -> None:
    found = [
        f"{path.relative_to(root)}:{number}: {match.group()}"
        for path in files
        if path.suffix not in NOT_TEXT
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := STRANGERS.search(line))
    ]
    assert found == []


def test_every_file_ends_with_one_newline(root: Path, files: list[Path]) -> None:
    torn = [
        str(path.relative_to(root))
        for path in files
        if path.suffix in {".py", ".md", ".toml", ".js", ".json", ".yaml", ".txt"}
        and (text := path.read_text(encoding="utf-8"))
        and (not text.endswith("\n") or text.endswith("\n\n"))
    ]
    assert torn == []


def test_the_example_notebooks_are_stored_executed(root: Path) -> None:
    notebooks = sorted((root / "example_notebooks").glob("*.ipynb"))
    assert notebooks, "there is no example notebook"
    for path in notebooks:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [o for cell in cells if cell["cell_type"] == "code" for o in cell["outputs"]]
        assert outputs, f"{path.name} is stored without outputs"
