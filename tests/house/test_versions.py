"""One version, in step everywhere it is written; and one place that pins the tools."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import nb_accelerate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, str]:
    """Package → version, from constraints.txt."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.strip() and not line.startswith("#")]
    return {same(name): version for name, _, version in (line.partition("==") for line in kept)}


def same(name: str) -> str:
    """A package's name in its one spelling."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def test_the_newest_section_of_the_changelog_is_this_version(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", text, flags=re.MULTILINE)
    assert versions[0] == nb_accelerate.__version__


def test_the_front_end_has_the_version_of_the_package(root: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        told = json.loads((root / "widgets" / name).read_text(encoding="utf-8"))
        assert told["version"] == nb_accelerate.__version__, name


def test_the_front_ends_lock_file_names_no_host(root: Path) -> None:
    text = (root / "widgets" / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in text


def test_the_front_ends_tools_are_pinned(root: Path) -> None:
    told = json.loads((root / "widgets" / "package.json").read_text(encoding="utf-8"))
    loose = [v for v in told["devDependencies"].values() if not re.fullmatch(r"\d+\.\d+\.\d+", v)]
    assert loose == []


def test_every_direct_dependency_is_pinned(project: dict[str, Any], pins: dict[str, str]) -> None:
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    loose = [name for name in map(required, asked) if name not in pins]
    assert loose == []


def required(requirement: str) -> str:
    """The package that a requirement names."""
    return same(re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0])


def test_every_pin_is_exact(pins: dict[str, str]) -> None:
    assert [name for name, version in pins.items() if not re.match(r"\d", version)] == []


def test_the_hooks_are_pinned_and_ruff_is_the_one_that_is_tested_with(
    root: Path, pins: dict[str, str]
) -> None:
    hooks = yaml.safe_load((root / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    revisions = {repo["repo"].rpartition("/")[2]: repo["rev"] for repo in hooks["repos"]}
    assert all(re.fullmatch(r"v?\d+\.\d+\.\d+|[0-9a-f]{40}", rev) for rev in revisions.values())
    assert revisions["ruff-pre-commit"] == f"v{pins['ruff']}"
