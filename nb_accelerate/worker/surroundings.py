"""What must be true around the function: descriptors, signals, environment, path, directory.

The one writer of `os.environ`: a worker's own, never the kernel's.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.machinery
import importlib.util
import io
import multiprocessing.process
import os
import signal
import sys
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_accelerate.worker.linux import line_buffered_c_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nb_accelerate.messages import Go

__all__ = [
    "distrust_stale_bytecode",
    "enter",
    "environment",
    "forget_exit_functions",
    "forget_missing_places",
    "reset_signals",
    "set_environment",
    "take_output",
    "take_session",
    "use_scratch",
]

# A prompt printed without a newline shows after this long.
_FLUSH_SECONDS = 0.015
_LONG_LINE = 1 << 16


class _PromptOutput(io.TextIOWrapper):
    """Text that leaves in whole lines, and an unfinished line after a moment.

    `print` writes its text and its newline apart, so threads of a rank could tear each other's
    lines, and so could its loader workers, which share the pipe: what each thread has written is
    kept until its line is whole, and leaves in one piece.
    """

    def __init__(self, descriptor: int) -> None:
        raw = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - lives with the process
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self._unfinished: dict[int, str] = {}
        self._has_unfinished = threading.Event()
        self._owner = os.getpid()
        self._flusher: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._unfinished.clear)  # the parent writes them

    def write(self, text: str, /) -> int:
        thread = threading.get_ident()
        whole = self._unfinished.pop(thread, "") + text
        if whole.endswith("\n") or len(whole) > _LONG_LINE:
            super().write(whole)
        elif whole:
            self._unfinished[thread] = whole
            self._wake()
        return len(text)

    def flush(self) -> None:
        for thread in list(self._unfinished):
            super().write(self._unfinished.pop(thread, ""))
        super().flush()

    def _wake(self) -> None:
        # A forked loader worker has this object but not the thread.
        if self._flusher is None and os.getpid() == self._owner:
            self._flusher = threading.Thread(
                target=self._flush_unfinished, name="nb_accelerate-flush", daemon=True
            )
            self._flusher.start()
        if not self._has_unfinished.is_set():
            self._has_unfinished.set()

    def _flush_unfinished(self) -> None:
        pause = threading.Event()
        while self._has_unfinished.wait():
            pause.wait(_FLUSH_SECONDS)
            self._has_unfinished.clear()
            self.flush()


def take_session() -> None:
    """Lead a session and process group of our own: the kernel's signals do not come here."""
    os.setsid()


def take_output(stdout: int, stderr: int) -> None:
    """Let everything that this process writes go to these two descriptors, C libraries included."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        if source != target:
            os.dup2(source, target)
            os.close(source)
        os.set_inheritable(target, True)  # noqa: FBT003 - positional only
    for name, stream in (
        ("stdin", open(0, closefd=False)),  # noqa: SIM115 - live as long as the process
        ("stdout", _PromptOutput(1)),
        ("stderr", _PromptOutput(2)),
    ):
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    line_buffered_c_output()


def reset_signals() -> None:
    """Python's ordinary handlers, except that an interrupt waits until a function runs."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def environment() -> dict[str, str]:
    """This process's environment as it is."""
    return dict(os.environ)


def set_environment(environment: Mapping[str, str]) -> None:
    """Replace this process's environment."""
    present = dict(os.environ)  # each look into os.environ encodes and decodes
    for name in present.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if present.get(name) != value:
            os.environ[name] = value


def use_scratch(folder: str) -> None:
    """Let multiprocessing put its sockets into a folder that is removed after us.

    Each loader worker would make a folder of its own, and one that is killed leaves it.
    """
    multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # noqa: SLF001


def distrust_stale_bytecode() -> None:
    """Import a module's newest source, even if it was edited within the second of its last import.

    Compiled files remember their source's time in whole seconds, so an edit of the same length soon
    after an import would not be seen. A source that is younger than its compiled file is compiled
    anew, under a time that no later edit can have.
    """
    loader = importlib.machinery.SourceFileLoader
    original = loader.path_stats

    def path_stats(self: importlib.machinery.SourceFileLoader, path: str) -> Mapping[str, Any]:
        stats = original(self, path)
        younger = _time_if_younger_than_bytecode(path)
        return stats if younger is None else {**stats, "mtime": younger}

    loader.path_stats = path_stats  # type: ignore[method-assign]  # there is no hook for it


def _time_if_younger_than_bytecode(source: str) -> int | None:
    """The source's time in nanoseconds, unless its compiled file is of a later one."""
    try:
        edited = Path(source).stat().st_mtime_ns
        compiled = Path(importlib.util.cache_from_source(source)).stat().st_mtime_ns
    except (OSError, NotImplementedError):  # not compiled yet
        return None
    return edited if edited >= compiled else None


def forget_exit_functions() -> None:
    """In a forked copy of the kernel: what was to run at the kernel's exit is not ours to run."""
    atexit._clear()  # noqa: SLF001 - there is no public way
    if util := sys.modules.get("multiprocessing.util"):
        atexit.register(util._exit_function)  # noqa: SLF001 - registered at its import


def enter(go: Go) -> None:
    """Take on the kernel's path, finders, directory and arguments, with a clean `__main__`."""
    if go.call is not None:
        # multiprocessing's children would import our own `__main__` again as theirs.
        sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[:] = go.path
    for module in go.installs:
        importlib.import_module(module).install()
    sys.argv[:] = go.argv
    os.chdir(go.cwd)


def forget_missing_places() -> None:
    """Let imports look again where there was no directory when they last looked.

    Those that were there are looked into again anyway when they have changed.
    """
    for place in [p for p, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[place]
