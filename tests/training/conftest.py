"""Ranks for tests: one launch of several processes gives a verdict for each of many checks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent

CHECKS = {
    "checks_two_ranks.py": (2,),
    "checks_loaders.py": (2,),
    "checks_sharing.py": (2,),
    "checks_parity.py": (1, 2, 4),
    "checks_checkpoint.py": (1, 2),
    "checks_resuming.py": (1, 2),
    "checks_telling.py": (2,),
    "checks_stepping.py": (2,),
    "checks_tokens.py": (1, 2, 4),
}

LAUNCH_LIMIT_SECONDS = 100


@pytest.fixture(autouse=True)
def _cache_of_compiled_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where torch may keep it; else torch names a place in the environment, for good."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each check on each number of ranks."""
    if "check" in metafunc.fixturenames:
        cases = [
            pytest.param((file, world_size), name, id=f"{name.removeprefix('check_')}-{world_size}")
            for file, world_sizes in CHECKS.items()
            for world_size in world_sizes
            for name in names_in(HERE / file)
        ]
        metafunc.parametrize(("launch", "check"), cases)


def names_in(path: Path) -> list[str]:
    """The checks of a file, which is not imported here."""
    return re.findall(r"^def (check_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="session")
def verdict_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[tuple[str, int], str], str]:
    """What the ranks of a launch said about one check: "" when all is well."""
    launches: dict[tuple[str, int], dict[str, str]] = {}

    def verdict(launch: tuple[str, int], check: str) -> str:
        if launch not in launches:
            launches[launch] = launched(*launch, tmp_path_factory.mktemp("ranks"))
        if check not in launches[launch]:
            pytest.skip("not run: an earlier check of this launch has failed")
        return launches[launch][check]

    return verdict


def launched(file: str, world_size: int, folder: Path) -> dict[str, str]:
    """Run all checks of a file on as many ranks."""
    command = [sys.executable, str(HERE / "host.py"), str(HERE / file), str(world_size)]
    with (folder / "output").open("w+") as output:
        host = subprocess.Popen(
            [*command, str(folder)],
            cwd=HERE.parents[1],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            host.wait(LAUNCH_LIMIT_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(host.pid, signal.SIGKILL)
            host.wait()
        output.seek(0)
        return merged(folder, world_size, output.read())


def merged(folder: Path, world_size: int, output: str) -> dict[str, str]:
    """The ranks' verdicts in one; a rank that wrote none has failed in all."""
    verdicts: dict[str, str] = {}
    for rank in range(world_size):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            pytest.fail(f"rank {rank} of {world_size} gave no verdict:\n{output}", pytrace=False)
        for name, text in json.loads(path.read_text()).items():
            if text:
                verdicts[name] = f"{verdicts.get(name, '')}\nrank {rank}: {text}"
            else:
                verdicts.setdefault(name, "")
    return verdicts
