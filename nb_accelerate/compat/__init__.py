"""Accelerate's own module paths, for code that imports `accelerate`.

    import nb_accelerate.compat
    nb_accelerate.compat.install()

    from accelerate import Accelerator          # ours
    from accelerate.utils import set_seed       # ours

`install()` makes `import accelerate` and everything below it lead here, in this process and in the
workers that are launched from it: scripts, transformers' Trainer and whatever else imports it run
on this package unchanged. Without it, `from nb_accelerate.compat.utils import set_seed` works too.

Reading order: table (what is where), mirror (the modules), absent (what this version does not
have), installing; then what upstream's utils ask of the surroundings: versions, probes,
environment, constants, configs.
"""

from __future__ import annotations

import sys

from .installing import install, installed, is_installed, uninstall
from .mirror import mirror_all

__all__ = ["install", "installed", "is_installed", "uninstall"]

__version__ = "1.15.0"
"""The version of Accelerate whose API this is."""

mirror_all(sys.modules[__name__])
