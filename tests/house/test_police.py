"""The police of tests/conftest.py: what it must find, and what it must let pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("the police reads /proc", allow_module_level=True)

CASES = """
    import os, subprocess, sys, threading, time

    KEPT = []

    def start(program):
        KEPT.append(subprocess.Popen([sys.executable, "-c", program]))

    def test_thread():
        threading.Thread(target=time.sleep, args=(2,)).start()

    def test_child():
        start("import time; time.sleep(4)")

    def test_orphan():
        subprocess.run(["sh", "-c", "sleep 4 &"], check=True)

    def test_unreaped_child():
        start("pass")
        os.waitid(os.P_PID, KEPT[-1].pid, os.WEXITED | os.WNOWAIT)

    def test_shared_memory():
        KEPT.append(open(os.environ["LEAK"], "w"))

    def test_environment():
        os.environ["LEFT"] = "behind"

    def test_open_door():
        start("import socket, time; s = socket.create_server(('0.0.0.0', 0)); time.sleep(4)")
        time.sleep(1)

    def test_grandchild_of_a_template():
        start('''# nb_accelerate.worker.template
    import os, time
    os.fork() or os.fork()
    time.sleep(4)''')
        time.sleep(0.5)

    def test_fine_template():
        start('''# nb_accelerate.worker.template
    import os, time
    os.fork() and os.fork()
    time.sleep(4)''')
        time.sleep(0.5)

    def test_fine_daemon_thread():
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()

    def test_fine_child_that_leaves_soon():
        KEPT.append(subprocess.Popen(["sleep", "0.1"]))
        threading.Thread(target=KEPT[-1].wait).start()

    def test_fine_patched_environment(monkeypatch):
        monkeypatch.setenv("PATCHED", "1")
"""

FINDINGS = {
    "test_thread": r"thread Thread-1 .*, which is no daemon",
    "test_child": r"process \d+, sleeping: .* import time",
    "test_orphan": r"process \d+, sleeping: sleep 4",
    "test_unreaped_child": r"process \d+, which has ended and is not waited for",
    "test_shared_memory": r"file /dev/shm/",
    "test_environment": r"os.environ\['LEFT'\]: None is now 'behind'",
    "test_open_door": r"process \d+ listens on 0\.0\.0\.0:\d+",
    "test_grandchild_of_a_template": r"process \d+, sleeping: .*nb_accelerate.worker.template",
}


@pytest.fixture(scope="module")
def reports(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Test → what the police said of it; one run for all cases."""
    folder = tmp_path_factory.mktemp("project") / "tests" / "processes"
    folder.mkdir(parents=True)
    conftest = (root / "tests" / "conftest.py").read_text(encoding="utf-8")
    hasty = conftest.replace("SETTLE_SECONDS = 3.0", "SETTLE_SECONDS = 1.0")
    (folder.parent / "conftest.py").write_text(hasty, encoding="utf-8")
    (folder / "test_cases.py").write_text(textwrap.dedent(CASES), encoding="utf-8")
    leak = f"/dev/shm/nb_accelerate-leak-{os.getpid()}"
    ini = "[pytest]\nmarkers =\n    processes: starts real workers\n"
    (folder.parent.parent / "pytest.ini").write_text(ini, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/processes", "-p", "no:cacheprovider"],
        cwd=folder.parent.parent,
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "LEAK": leak},
        check=False,
    )
    Path(leak).unlink()
    parts = re.split(r"^_+ ERROR at teardown of (\w+) _+$", ran.stdout, flags=re.MULTILINE)
    assert " passed" in parts[-1], ran.stdout + ran.stderr
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("case", FINDINGS)
def test_what_outlives_its_test_is_found_and_named(reports: dict[str, str], case: str) -> None:
    assert re.search(FINDINGS[case], reports.get(case, "nothing was found"))


def test_what_may_stay_is_let_pass(reports: dict[str, str]) -> None:
    assert reports.keys() == FINDINGS.keys()
