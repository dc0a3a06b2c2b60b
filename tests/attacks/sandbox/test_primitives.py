"""Every primitive of the corpus is denied on every level, for every user, but those that the corpus says may be
done."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf.sandbox.seccomp import ARCHITECTURES
from rlhf.sandbox.syscalls import SYSCALLS
from tests.attacks.sandbox.primitives import GROUPS, allowed, attempts, program, table
from tests.sandbox.conftest import ROOT, Jail

OTHER_CALLS = {"renameat2": (316, 276)}


def numbers() -> dict[str, int]:
    """Numbers of this machine's system calls; one that it does not have is one that nobody has."""
    column = ARCHITECTURES[os.uname().machine][0]
    return {
        name: 9999 if row[column] is None else int(str(row[column])) for name, row in (SYSCALLS | OTHER_CALLS).items()
    }


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


def tried(jail: Jail, outside: Path, *, bounded: bool = True, level: str = "") -> dict[str, tuple[str, str]]:
    """Primitive → outcome and what was seen, all tried in one run."""
    bystander = jail.bystander()
    name = f"rlhf-attack-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as at_a_path,
    ):
        datagrams.bind(f"\0{name}")
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
            seen: dict[str, Any] = jail.run(program(numbers(), values), bounded=bounded, wall_seconds=60.0)
            assert bystander.poll() is None
            for listener in (datagrams, at_a_path):
                listener.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listener.recv(1)
        finally:
            bystander.kill()
            bystander.wait(10)
    lines = [json.loads(line) for line in seen["stdout"].splitlines()]
    assert [line[0] for line in lines] == list(attempts()), seen["stderr"] + seen["detail"]
    return {name: (outcome, what) for name, outcome, what in lines}


@pytest.mark.engine
def test_every_primitive_is_denied_but_those_that_are_listed(jail: Jail, outside: Path) -> None:
    grouped = jail.user == "root"
    outcomes = tried(jail, outside)
    expected = {name: "done" if allowed(name, jail.level, grouped=grouped) else "denied" for name in attempts()}
    wrong = {name: seen for name, seen in outcomes.items() if seen[0] != expected[name]}
    assert wrong == {}
    assert (outside / "file").read_text() == "untouched"
    assert sorted(path.name for path in outside.iterdir()) == ["empty", "file", "link", "socket"]


def test_the_corpus_has_at_least_150_primitives() -> None:
    assert len(attempts()) >= 150
    assert len(attempts()) == sum(map(len, GROUPS.values()))


def test_the_table_of_the_documentation_is_that_of_the_corpus() -> None:
    assert table() in (ROOT / "docs" / "sandbox.md").read_text()
