"""Temporary folders with short paths: a unix socket's path has at most 107 bytes, and Ray's own names take 76 of
them."""

from __future__ import annotations

import tempfile
from pathlib import Path

LONGEST_PARENT = 28
"""Longest parent path for a folder that holds Ray's sockets."""
LONGEST_SCRATCH_PARENT = LONGEST_PARENT - len("/rlhf-12345678")


def socket_folder(prefix: str, longest_parent: int = LONGEST_PARENT) -> Path:
    """Make a private folder in the temporary directory, or in `/tmp` if that path is too long."""
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent if len(parent) <= longest_parent else "/tmp"))
