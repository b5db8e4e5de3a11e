"""All measurements, or those named, as Markdown: targets first, then a table each."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import ends, failure, imports, launch, output, ship, training
from benchmarks.harness import Section, machine, summary
from benchmarks.peers import OURS, PEERS, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.peers import Peer

_RESULTS = Path(__file__).with_name("results.md")
_MEASUREMENTS: Mapping[str, Callable[[Sequence[Peer], int], Section]] = {
    "imports": imports.measure,
    "launch": launch.measure,
    "ends": ends.measure,
    "output": output.measure,
    "failure": failure.measure,
    "ship": ship.measure,
    "training": training.measure,
}


def main() -> int:
    """Measure and tell; 1 when a target is missed."""
    asked = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that kernels are closed
    names = asked.measurements or list(_MEASUREMENTS)
    peers = [p for p in PEERS if p in (REFERENCE, OURS) or _is_chosen(p, asked.peers)]
    where, sections = machine(), []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        sections.append(_measured(name, peers, asked.repetitions))
        if not asked.measurements:
            _RESULTS.write_text(_report(where, sections), encoding="utf-8")
    print(_report(where, sections))
    return int(not all(check.passes for section in sections for check in section.checks))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("measurements", nargs="*", help=f"of {', '.join(_MEASUREMENTS)}; else all")
    parser.add_argument("--repetitions", type=int, default=5, help="per peer (default: 5)")
    parser.add_argument("--peers", default="", help="words in the names of those to measure")
    return parser


def _is_chosen(peer: Peer, words: str) -> bool:
    return any(word.strip() in peer.name for word in words.split(","))


def _measured(name: str, peers: Sequence[Peer], repetitions: int) -> Section:
    before = os.getloadavg()[0]
    section = _MEASUREMENTS[name](peers, repetitions)
    return replace(section, load=(before, os.getloadavg()[0]))


def _report(where: str, sections: Sequence[Section]) -> str:
    tables = "\n".join(section.markdown() for section in sections)
    return f"# Benchmarks\n\n{where}.\n\n{summary(sections)}\n{tables}"


if __name__ == "__main__":
    sys.exit(main())
