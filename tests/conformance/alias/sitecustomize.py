"""Read by every interpreter that has this folder in PYTHONPATH: `import accelerate` leads to ours.

All but its `test_utils`, which upstream's tests import their helpers from: that is upstream's own,
from UPSTREAM_TEST_UTILS, and what it imports of the package is ours.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import nb_accelerate.compat

FOLDER = os.environ.get("UPSTREAM_TEST_UTILS", "")
NAME = "accelerate.test_utils"


class TestUtils:
    """Finds the package and what is below it."""

    @staticmethod
    def find_spec(name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        if FOLDER and name == NAME:
            return PathFinder.find_spec(name, [str(Path(FOLDER).parent)])
        return None


if FOLDER:
    nb_accelerate.compat.install()
    sys.meta_path.insert(0, TestUtils)
