"""Accelerate's own published tests: where they come from, and how they are run on ours.

Nothing of them is kept in this repository. The source distribution is fetched once, by pip.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as xml
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".make" / "conformance"

VERSION = "1.15.0"

# How many tests of each file Accelerate itself passes on a machine without a GPU.
CEILINGS = {
    "test_accelerator": 43,
    "test_data_loader": 36,
    "test_utils": 45,
    "test_state_checkpointing": 16,
    "test_tracking": 13,
    "test_scheduler": 8,
    "test_memory_utils": 6,
    "test_grad_sync": 2,
    "test_cpu": 2,
    "test_kwargs_handlers": 2,
    "test_logging": 2,
    "test_optimizer": 1,
}

# Programs for two processes. Accelerate itself does not come to the end of the last one on CPUs.
SCRIPTS = ("test_script", "test_ops", "test_sync", "test_cli", "test_distributed_data_loop")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a file's tests; `failed` are their names."""

    passed: int
    failed: frozenset[str]
    output: str


def sources() -> Path:
    """The unpacked source distribution."""
    root = CACHE / f"accelerate-{VERSION}"
    if not root.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        options = ["--quiet", "--no-deps", "--no-binary=:all:", "--no-build-isolation"]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, f"accelerate=={VERSION}"],
            cwd=CACHE,
            check=True,
            timeout=100,
        )
        with tarfile.open(CACHE / f"accelerate-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return root


def run_file(root: Path, name: str, folder: Path, seconds: float) -> Outcome:
    """Run one of upstream's test files, in an interpreter of its own with a home of its own."""
    report = folder / "report.xml"
    # Without a configuration, or pytest would take this repository's.
    options = ["-q", "-c", os.devnull, "--rootdir", str(root), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}"]
    command.append(str(root / "tests" / f"{name}.py"))
    _, output = bounded(command, root, folder, seconds)
    if not report.exists():
        return Outcome(0, frozenset({"all"}), output)
    passed, failed = 0, set()
    for case in xml.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.add(str(case.get("name")))
        elif "skipped" not in kinds:
            passed += 1
    return Outcome(passed, frozenset(failed), output)


def run_script(root: Path, name: str, folder: Path, seconds: float) -> tuple[int | None, str]:
    """(exit code, output) of one of upstream's scripts on two processes; None: no end in time."""
    path = root / "src" / "accelerate" / "test_utils" / "scripts" / f"{name}.py"
    return bounded([*TORCHRUN, str(path)], root, folder, seconds, ACCELERATE_USE_CPU="true")


def bounded(
    command: list[str], root: Path, home: Path, seconds: float, **environment: str
) -> tuple[int | None, str]:
    with (home / "output").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**surroundings(root, home), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


def surroundings(root: Path, home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "PYTEST_"))}
    return {
        **kept,
        "UPSTREAM_TEST_UTILS": str(root / "src" / "accelerate" / "test_utils"),
        "PYTHONPATH": os.pathsep.join([str(HERE / "alias"), str(ROOT)]),
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
