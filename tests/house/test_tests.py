"""The tests themselves: each can fail, says what it is about, and stands on real things."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Source

SAYS_SO = re.compile(r"^(assert|check|expect|verify)|^(raises|warns|fail|deprecated_call)$")

FEWEST_WORDS_OF_A_NAME = 3


def test_every_test_can_fail(tests: list[Source]) -> None:
    idle = [f"{name} {test.name}" for name, test in all_tests(tests) if not asserts(test)]
    assert idle == []


def all_tests(tests: list[Source]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for source in tests:
        for _, function in source.functions():
            if function.name.startswith("test_"):
                yield source.name, function


def asserts(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the test asserts, expects an error, or calls a function whose name says it does."""
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and SAYS_SO.search(last_name(node.func).lstrip("_")))
        for node in ast.walk(test)
    )


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_the_name_of_a_test_is_a_sentence(tests: list[Source]) -> None:
    short = [
        f"{name} {test.name}"
        for name, test in all_tests(tests)
        if len(test.name.removeprefix("test_").split("_")) < FEWEST_WORDS_OF_A_NAME
    ]
    assert short == []


def test_no_two_tests_of_a_file_have_one_name(tests: list[Source]) -> None:
    seen: set[tuple[str, str]] = set()
    twice = []
    for source in tests:
        for name, function in source.functions():
            if function.name.startswith("test_"):
                if (source.name, name) in seen:
                    twice.append(f"{source.name} {name}")
                seen.add((source.name, name))
    assert twice == []


def test_nothing_of_ours_is_mocked(tests: list[Source]) -> None:
    mocking = [
        source.name
        for source in tests
        if any(module.startswith(("unittest.mock", "mock")) for module in imported(source.tree))
    ]
    assert mocking == []


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def test_unit_tests_use_no_torch_and_do_not_sleep(tests: list[Source]) -> None:
    heavy = [
        source.name
        for source in tests
        if source.name.startswith("tests/unit/")
        and (sleeps(source.tree) or loads_torch(source.tree))
    ]
    assert heavy == []


def sleeps(tree: ast.Module) -> bool:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(last_name(call.func) == "sleep" for call in calls)


def loads_torch(tree: ast.Module) -> bool:
    """Whether the file imports torch for all of its tests."""
    at_the_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = imported(ast.Module(body=list(at_the_top), type_ignores=[]))
    return any(module.partition(".")[0] == "torch" for module in modules)
