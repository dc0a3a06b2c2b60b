"""Every call of the table is denied on every level, for every user, except those that the table allows."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.sandbox import seccomp
from tests.attacks.sandbox.denied_calls import allowed, attempts, program
from tests.sandbox.conftest import Jail, jail, shared_jail

__all__ = ["jail", "shared_jail"]
pytestmark = pytest.mark.engine
OTHERS = (
    "move_pages 279 239, mount 165 40, umount2 166 39, pivot_root 155 41, move_mount 429 429, open_tree 428 428, "
    "fsopen 430 430, setns 308 268, reboot 169 142, kexec_load 246 104, init_module 175 105, swapon 167 224, acct "
    "163 89, settimeofday 164 170, ioperm 173 -, vhangup 153 58, clone 56 220, clone3 435 435, sendto 44 206"
)
"""Calls that the kernel denies without the filter, or that the filter denies by their arguments."""


def numbers() -> dict[str, int]:
    """Numbers of this machine's system calls; one that it does not have gets a number that no call has."""
    tables = (seccomp.REFUSED, seccomp.ONLY_ITSELF, seccomp.SIGNALS, seccomp.OTHER_SIGNALS, OTHERS)
    rows = {name: number for table in tables for name, number in seccomp.syscall_numbers(table).items()}
    return {name: 9999 if number is None else number for name, number in rows.items()}


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder where everybody may do everything, with a file, a link and an empty folder."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        (Path(folder) / "file").write_text("untouched")
        (Path(folder) / "file").chmod(0o777)
        (Path(folder) / "link").symlink_to("/secret/place")
        (Path(folder) / "empty").mkdir()
        yield Path(folder)


def outcomes(jail: Jail, outside: Path) -> dict[str, tuple[str, str]]:
    """Call → outcome and what was seen, all tried in one run."""
    bystander = jail.bystander()
    name = f"rlhf-attack-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as at_a_path,
    ):
        abstract.bind(f"\0{name}")
        at_a_path.bind(str(outside / "socket"))
        (outside / "socket").chmod(0o777)
        values = {
            "OUTSIDE": str(outside / "file"),
            "LINK": str(outside / "link"),
            "FOLDER": str(outside),
            "BYSTANDER": bystander.pid,
            "PORT": server.getsockname()[1],
            "ABSTRACT": name,
            "SOCKET": str(outside / "socket"),
        }
        try:
            run = jail.try_out(program(numbers(), values), wall_seconds=60.0)
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait(10)
        for listener in (abstract, at_a_path):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.recv(1)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line[0] for line in lines] == list(attempts()), run.stderr + run.detail
    return {name: (outcome, what) for name, outcome, what in lines}


def test_every_call_is_denied_except_those_that_are_allowed(jail: Jail, outside: Path) -> None:
    if jail.user == "nobody":
        os.chown(outside / "file", 65534, 65534)
    before = (outside / "file").stat()
    wrong = {
        name: seen
        for name, seen in outcomes(jail, outside).items()
        if seen[0] != ("done" if allowed(name, jail.level, grouped=jail.grouped) else "denied")
    }
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert (outside / "file").stat() == before
    assert os.listxattr(outside / "file") == []
    assert sorted(path.name for path in outside.iterdir()) == ["empty", "file", "link", "socket"]
