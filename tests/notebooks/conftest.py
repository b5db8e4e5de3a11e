"""Kernels for tests: one per module, with many cells, since real processes take real time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.notebooks.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

IMPORTS = """
import os, signal, sys, threading, time
import nb_accelerate
from nb_accelerate import notebook_launcher
from witness import here
"""


@pytest.fixture(scope="module")
def kernel_of_module() -> Iterator[Kernel]:
    """The one kernel that this module's tests share."""
    with Kernel() as kernel:
        kernel.run(IMPORTS)
        yield kernel


@pytest.fixture
def kernel(kernel_of_module: Kernel) -> Iterator[Kernel]:
    """The module's kernel; what a test's launches leave behind is the test's failure."""
    kernel_of_module.forget_witnesses()
    yield kernel_of_module
    if kernel_of_module.is_busy or not kernel_of_module.is_alive:
        # The test has failed; the next one deserves a kernel that answers.
        kernel_of_module.restart(politely=False)
        kernel_of_module.run(IMPORTS)
        return
    kernel_of_module.expect_no_strays()
    kernel_of_module.expect_no_temporary_files()


@pytest.fixture
def new_kernel() -> Iterator[Kernel]:
    """A kernel for a test that ends it or spoils it."""
    with Kernel() as kernel:
        kernel.run(IMPORTS)
        yield kernel
