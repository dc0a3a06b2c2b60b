"""Temporary folders whose paths are short: a unix socket's path has 107 bytes, and Ray's own names take 76 of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

LONGEST_PARENT = 28
"""Of a folder that holds sockets of Ray."""
LONGEST_SCRATCH_PARENT = LONGEST_PARENT - len("/rlhf-12345678")


def socket_folder(prefix: str, longest_parent: int = LONGEST_PARENT) -> Path:
    """Make a private folder where temporary files go, or in `/tmp` where that path is too long."""
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent if len(parent) <= longest_parent else "/tmp"))
