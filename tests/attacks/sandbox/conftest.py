"""The cages of `tests/sandbox`, and one whose folders lie in memory, where a meter sees them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

from tests.sandbox.conftest import NOBODY, Cage, cage, user

__all__ = ["cage", "metered_cage", "user"]
MNT_DETACH = 2


@pytest.fixture
def metered_cage(cage: Cage) -> Iterator[Cage]:
    """The folder for scratch folders is a file system of 512 MiB, where this user may mount one."""
    libc = ctypes.CDLL(None)
    mounted = libc.mount(b"none", str(cage.scratch).encode(), b"tmpfs", 0, b"size=512m,mode=0711") == 0
    if mounted and cage.user == "nobody":
        os.chown(cage.scratch, NOBODY, NOBODY)
    yield cage
    left = list(cage.scratch.iterdir())
    if mounted:
        libc.umount2(str(cage.scratch).encode(), MNT_DETACH)
    assert left == []
