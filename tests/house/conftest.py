"""What the rules look at: the repository's files, read and parsed once."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file."""

    name: str
    """Its path from the repository's root, with slashes."""
    text: str
    tree: ast.Module

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """All functions at any depth, with their dotted names such as "Run.wait"."""
        yield from _functions(self.tree, "")


def _functions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            yield prefix + child.name, child
        named = isinstance(child, (*FUNCTIONS, ast.ClassDef))
        yield from _functions(child, f"{prefix}{child.name}." if named else prefix)


def _sources(folder: str) -> list[Source]:
    return [_source(path) for path in sorted((ROOT / folder).rglob("*.py"))]


def _source(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path.relative_to(ROOT).as_posix(), text, ast.parse(text))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def package() -> list[Source]:
    """All files of nb_accelerate."""
    return _sources("nb_accelerate")


@pytest.fixture(scope="session")
def tests() -> list[Source]:
    """All files of tests."""
    return _sources("tests")


@pytest.fixture(scope="session")
def readme() -> str:
    """The README's text."""
    return (ROOT / "README.md").read_text(encoding="utf-8")
