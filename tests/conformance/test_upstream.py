"""Accelerate's own tests pass on ours, but for those that README.md explains."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import upstream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AGREED = 168
"""Fewest tests of upstream's that must pass, of the 176 that Accelerate itself passes."""

FILE_SECONDS = 240
SCRIPT_SECONDS = 120

pytestmark = pytest.mark.timeout(FILE_SECONDS + 120)


@pytest.fixture(scope="session")
def sources() -> Path:
    """Upstream's source distribution, fetched if need be."""
    return upstream.sources()


@pytest.fixture(scope="session")
def outcome(
    sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], upstream.Outcome]:
    """What became of one of upstream's files; each is run once."""
    outcomes: dict[str, upstream.Outcome] = {}

    def of(name: str) -> upstream.Outcome:
        if name not in outcomes:
            folder = tmp_path_factory.mktemp(name)
            outcomes[name] = upstream.run_file(sources, name, folder, FILE_SECONDS)
        return outcomes[name]

    return of


def explained() -> dict[str, set[str]]:
    """File → its tests that README.md explains."""
    rows = re.findall(
        r"^\| `(test_\w+)` \| `(\w+)` \|",
        (upstream.HERE / "README.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    return {file: {test for other, test in rows if other == file} for file in upstream.CEILINGS}


@pytest.mark.parametrize("name", upstream.CEILINGS)
def test_no_test_of_upstreams_fails_without_an_explanation(
    outcome: Callable[[str], upstream.Outcome], name: str
) -> None:
    got = outcome(name)
    assert got.failed - explained()[name] == set(), got.output[-6000:]
    assert got.passed >= upstream.CEILINGS[name] - len(explained()[name])


@pytest.mark.parametrize("name", [name for name, tests in explained().items() if tests])
def test_no_explanation_outlives_its_failure(
    outcome: Callable[[str], upstream.Outcome], name: str
) -> None:
    assert explained()[name] - outcome(name).failed == set()


@pytest.mark.timeout(len(upstream.CEILINGS) * FILE_SECONDS)
def test_as_many_tests_of_upstreams_pass_as_was_agreed(
    outcome: Callable[[str], upstream.Outcome],
) -> None:
    passed = {name: outcome(name).passed for name in upstream.CEILINGS}
    # More than the ceiling pass where packages are installed that Accelerate was not measured with.
    counted = sum(min(n, upstream.CEILINGS[name]) for name, n in passed.items())
    print(f"{counted} of {sum(upstream.CEILINGS.values())}")
    assert counted >= AGREED, passed


@pytest.mark.parametrize("name", upstream.SCRIPTS)
def test_a_script_of_upstreams_comes_to_its_end_on_two_processes(
    sources: Path, tmp_path: Path, name: str
) -> None:
    code, output = upstream.run_script(sources, name, tmp_path, SCRIPT_SECONDS)
    assert code == 0, output[-6000:]
