"""Every check of the checks_*.py files, on real ranks that talk over gloo."""

from __future__ import annotations


def test_the_check_holds_on_every_rank(launch, check, verdict_of) -> None:
    verdict = verdict_of(launch, check)
    assert not verdict, verdict
