"""Where a supervised program keeps its private files (sockets, sessions); its supervisor removes them at the end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SCRATCH_VARIABLE = "RLHF_SCRATCH"
LONGEST_TEMP_FOLDER = 16
"""A unix socket's path has 107 bytes, and Ray's own names take about 65 of them."""


def scratch_dir() -> Path | None:
    """The supervisor's folder of private files; None when nothing supervises."""
    folder = os.environ.get(SCRATCH_VARIABLE)
    return Path(folder) if folder and Path(folder).is_dir() else None


def short_temp_dir() -> str:
    """The folder for temporary files, or `/tmp` where that one is too long for a socket below it."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST_TEMP_FOLDER else "/tmp"
