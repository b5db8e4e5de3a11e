"""The template, started ahead: importing torch takes a second or two, and then it is over."""

from __future__ import annotations

import _thread
import sys
import time
from contextlib import suppress

from nb_accelerate.errors import NbAccelerateError
from nb_accelerate.launch.template import template_of_this_kernel

__all__ = ["warm_up", "warm_up_in_a_kernel"]

# The kernel's first cells are imports, which this must not slow down.
_CALM_SECONDS = 3.0


def warm_up() -> None:
    """Start the template process in the background, so that the first launch finds it ready."""
    template_of_this_kernel().warm_up()


def warm_up_in_a_kernel() -> None:
    """The same, where a launch is to be expected: in a notebook's kernel. Ranks follow."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and hasattr(shell, "kernel"):
        warm_up()
        _thread.start_new_thread(_expect_a_launch, ())  # none that the user's code should see


def _expect_a_launch() -> None:
    """Have ranks made for a launch like the user's newest, once the kernel is calm."""
    time.sleep(_CALM_SECONDS)
    # Imported late: the template has its own imports to make while the kernel makes these.
    from nb_accelerate.launch.environment import run_root, survey_here
    from nb_accelerate.launch.forecast import likely_seats

    with suppress(NbAccelerateError):  # a launch that finds the same wrong will say so
        template_of_this_kernel().expect(likely_seats(run_root(None), survey_here()))
