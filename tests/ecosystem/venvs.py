"""Programs in the virtual environments of other projects, which `make test-ecosystem` builds."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PROGRAM_SECONDS = 120


def python(venv: str) -> Path:
    """The interpreter of a virtual environment. Raises `AssertionError` where it was not built."""
    found = ROOT / ".venv-ecosystem" / venv / "bin" / "python"
    assert found.exists(), f"{found.parent.parent.name} is not there: run make test-ecosystem"
    return found


def environment() -> dict[str, str]:
    """Ours without PYTHONPATH: nothing of this project is seen by a stock package."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(venv: str, program: str, *arguments: str) -> Any:
    """The last line that a program of `programs/` printed, as JSON."""
    words = [str(python(venv)), str(PROGRAMS / program), *arguments]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PROGRAM_SECONDS, env=environment())
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])
