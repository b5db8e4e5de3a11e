"""The template, started ahead: importing torch takes a second or two, and then it is over."""

from __future__ import annotations

import sys

from nb_accelerate.launch.template import template_of_this_kernel

__all__ = ["warm_up", "warm_up_in_a_kernel"]


def warm_up() -> None:
    """Start the template process in the background, so that the first launch finds it ready."""
    template_of_this_kernel().warm_up()


def warm_up_in_a_kernel() -> None:
    """The same, where a launch is to be expected: in a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and hasattr(shell, "kernel"):
        warm_up()
