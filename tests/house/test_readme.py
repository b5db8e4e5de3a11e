"""The README: its table is the spec, its code compiles, its links lead somewhere."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

import nb_accelerate
from nb_accelerate.spec import LaunchSpec

if TYPE_CHECKING:
    from pathlib import Path


def rows(readme: str) -> dict[str, tuple[str, str]]:
    """Setting → (default, meaning), from the table of settings."""
    table = readme.partition("<!-- settings:start -->")[2].partition("<!-- settings:end -->")[0]
    found = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.+?) \|$", table, flags=re.MULTILINE)
    return {name: (default, meaning) for name, default, meaning in found}


def test_the_table_of_settings_is_the_spec(readme: str) -> None:
    told = {f.name: (repr(f.default), str(f.metadata["help"])) for f in fields(LaunchSpec)}
    assert rows(readme) == told


def test_every_public_name_is_told(readme: str) -> None:
    silent = [name for name in nb_accelerate.__all__ if not re.search(rf"\b{name}\b", readme)]
    assert silent == []


def test_the_python_code_compiles(readme: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")


def test_every_link_within_the_project_leads_somewhere(readme: str, root: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", readme)
    local = [target for target in targets if not re.match(r"\w+:", target)]
    assert local
    broken = [target for target in local if not leads_somewhere(target, readme, root)]
    assert broken == []


def leads_somewhere(target: str, readme: str, root: Path) -> bool:
    path, _, anchor = target.partition("#")
    if path:
        return (root / path).exists()
    return anchor in {slug(title) for title in re.findall(r"^#+ (.+)$", readme, flags=re.MULTILINE)}


def slug(title: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("end", ["start", "end"])
def test_the_place_of_the_benchmarks_is_marked_once(readme: str, end: str) -> None:
    assert readme.count(f"<!-- benchmarks:{end} -->") == 1


def test_the_reading_order_names_files_that_exist(readme: str, root: Path) -> None:
    named = set(re.findall(r"`((?:nb_accelerate/)?[\w/]+\.py)`", readme))
    assert named
    missing = [name for name in named if not exists(root, name)]
    assert missing == []


def exists(root: Path, name: str) -> bool:
    return (root / name).exists() or (root / "nb_accelerate" / name).exists()
