"""What the supervisor sees of the processes of a run."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.sandbox import descendants
from rlhf.sandbox.descendants import IN_A_SOCKET, Unmeasured, memory_bytes, nameless_bytes

NAMES = (b"\xff\xfe", b"a\rb", b"\x0b \x85", b"\x1c", "\u2028 x".encode())


@pytest.mark.parametrize("name", NAMES)
def test_a_mapped_file_may_have_any_name(tmp_path: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)
    with open(path, "wb+") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            assert nameless_bytes([os.getpid()], str(tmp_path)) == 0
            os.unlink(path)
            assert nameless_bytes([os.getpid()], str(tmp_path)) == 0  # it is open, and holds no block


@pytest.fixture
def hiding(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process with 20 sockets that shows nobody which they are, as one of the same user is seen."""
    pairs = [socket.socketpair() for _ in range(10)]
    ready, told = os.pipe()
    if (process := os.fork()) == 0:
        ctypes.CDLL(None).prctl(4, 0)
        os.write(told, b"1")
        os.read(ready, 2)
        os._exit(0)
    os.read(ready, 1)
    listed = os.listdir

    def closed(path: str) -> list[str]:
        if path.startswith(f"/proc/{process}/task/") and path.endswith("/fd"):
            raise PermissionError
        return listed(path)

    monkeypatch.setattr(descendants.os, "listdir", closed)
    yield process
    os.write(told, b"22")
    os.waitpid(process, 0)
    for pair in pairs:
        for end in pair:
            end.close()


def test_what_a_process_hides_counts_as_full_sockets_and_its_files_cannot_be_measured(hiding: int) -> None:
    assert memory_bytes([hiding], 1 << 60) >= 20 * IN_A_SOCKET
    with pytest.raises(Unmeasured, match="hides what it holds"):
        nameless_bytes([hiding], "/tmp")
    assert nameless_bytes([hiding], "/tmp", trusted=hiding) == 0
    with pytest.raises(Unmeasured, match="hides what it holds"):
        nameless_bytes([hiding], "/tmp", trusted=os.getpid())
