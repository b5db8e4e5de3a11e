"""How many faults, and which: `pytest tests/faults --faults 200 --fault-seed 7`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.fault import Fault
from tests.notebooks.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_FAULTS = 24
DEFAULT_SEED = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", type=int, default=DEFAULT_FAULTS, help="how many random faults")
    parser.addoption("--fault-seed", type=int, default=DEFAULT_SEED, help="which ones")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        # Options of this file are unknown when pytest begins in a folder above.
        count = metafunc.config.getoption("faults", DEFAULT_FAULTS)
        seed = metafunc.config.getoption("fault_seed", DEFAULT_SEED)
        metafunc.parametrize("fault", [Fault.drawn(seed, n) for n in range(count)], ids=str)


class Lodging:
    """One kernel for all faults, another one when a fault has cost it."""

    def __init__(self) -> None:
        self._kernel: Kernel | None = None

    def kernel(self) -> Kernel:
        """One that is alive and idle."""
        if self._kernel is not None and (not self._kernel.is_alive or self._kernel.is_busy):
            self.close()
        if self._kernel is None:
            self._kernel = Kernel()
            self._kernel.__enter__()
        return self._kernel

    def close(self) -> None:
        """End it."""
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.__exit__(None, None, None)


@pytest.fixture(scope="module")
def lodging() -> Iterator[Lodging]:
    """Where the faults happen."""
    lodging = Lodging()
    yield lodging
    lodging.close()
