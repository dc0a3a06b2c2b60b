"""What the supervisor sees of the processes of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlhf.sandbox import descendants
from rlhf.sandbox.descendants import IN_A_SOCKET, Unmeasured, memory_bytes, nameless_bytes

NAMES = (b"\xff\xfe", b"a\rb", b"\x0b \x85", b"\x1c", "\u2028 x".encode(), b"x (deleted)")


MAPS = """
import mmap, os, sys
path = os.fsencode(sys.argv[1])
with open(path, "wb+") as file:
    file.truncate(4096)
    with mmap.mmap(file.fileno(), 4096):
        print("mapped", flush=True)
        sys.stdin.readline()
        os.unlink(path)
        print("unlinked", flush=True)
        sys.stdin.readline()
"""
HIDES = """
import ctypes, socket, sys
pairs = [socket.socketpair() for _ in range(10)]
ctypes.CDLL(None).prctl(4, 0)
print("hidden", flush=True)
sys.stdin.readline()
"""


@contextmanager
def running(code: str, *arguments: str | bytes) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that goes on line by line, and ends with its input."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.communicate(timeout=60)


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("name", NAMES)
def test_a_mapped_file_may_have_any_name(tmp_path: Path, name: bytes) -> None:
    with running(MAPS, os.path.join(os.fsencode(tmp_path), name)) as process:
        assert told(process) == "mapped"
        assert nameless_bytes([process.pid], str(tmp_path)) == 0
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        assert told(process) == "unlinked"
        assert nameless_bytes([process.pid], str(tmp_path)) == 0  # it is open, and holds no block


@pytest.fixture
def hiding(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process with 20 sockets that shows nobody which they are, as one of the same user is seen."""
    with running(HIDES) as process:
        assert told(process) == "hidden"
        listed = os.listdir

        def closed(path: str) -> list[str]:
            if path.startswith(f"/proc/{process.pid}/task/") and path.endswith("/fd"):
                raise PermissionError
            return listed(path)

        monkeypatch.setattr(descendants.os, "listdir", closed)
        yield process.pid


def test_what_a_process_hides_counts_as_full_sockets_and_its_files_cannot_be_measured(hiding: int) -> None:
    assert memory_bytes([hiding], 1 << 60) >= 20 * IN_A_SOCKET
    with pytest.raises(Unmeasured, match="hides what it holds"):
        nameless_bytes([hiding], "/tmp")
    assert nameless_bytes([hiding], "/tmp", trusted=hiding) == 0
    with pytest.raises(Unmeasured, match="hides what it holds"):
        nameless_bytes([hiding], "/tmp", trusted=os.getpid())
