"""`recipes/single_file/grpo.py` as a module. It lies in no package, as it would in a newcomer's folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).parents[2] / "recipes" / "single_file" / "grpo.py"
NAME = "single_file_grpo"


def load() -> ModuleType:
    """Run the file anew and return its names."""
    spec = importlib.util.spec_from_file_location(NAME, SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module
