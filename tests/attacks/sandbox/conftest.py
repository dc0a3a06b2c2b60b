"""The jails of `tests/sandbox`, and one whose folders lie in memory, where a meter sees them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

from tests.sandbox.conftest import NOBODY, Jail, jail, user

__all__ = ["jail", "metered_jail", "user"]
MNT_DETACH = 2


@pytest.fixture
def metered_jail(jail: Jail) -> Iterator[Jail]:
    """The folder for scratch folders is a file system of 512 MiB, where this user may mount one."""
    libc = ctypes.CDLL(None)
    mounted = libc.mount(b"none", str(jail.scratch).encode(), b"tmpfs", 0, b"size=512m,mode=0711") == 0
    if mounted and jail.user == "nobody":
        os.chown(jail.scratch, NOBODY, NOBODY)
    yield jail
    left = list(jail.scratch.iterdir())
    if mounted:
        libc.umount2(str(jail.scratch).encode(), MNT_DETACH)
    assert left == []
