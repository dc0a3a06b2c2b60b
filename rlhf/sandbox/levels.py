"""Chooses the isolation level: tests each with a real program, strongest first, and takes the first that holds."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.errors import SandboxBroken, SandboxUnavailable
from rlhf.sandbox.groups import GroupParent, find_group_parent
from rlhf.sandbox.isolation import Interpreter, IsolationLevel, SandboxIsolation, candidates, interpreter
from rlhf.sandbox.program import MIB, Program, SandboxLimits
from rlhf.sandbox.run import run_program

PROBE_LIMITS = SandboxLimits(wall_seconds=20.0, memory_bytes=256 * MIB)
PROBE = """
import os, socket
def allowed(what):
    try:
        what()
        return True
    except OSError:
        return False
print("reads", allowed(lambda: open({secret!r}).read()))
print("writes", allowed(lambda: open({secret!r}, "r+")))
print("connects", allowed(lambda: socket.create_connection(("127.0.0.1", {port}), 1)))
print("prints to nowhere", allowed(lambda: open(os.devnull, "w").write("x")))
print("runs", 6 * 7)
"""
HOLDS = "reads False\nwrites False\nconnects False\nprints to nowhere True\nruns 42\n"
ADVICE = "install bubblewrap (apt-get install bubblewrap), or use a kernel with Landlock (5.13 and later)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenIsolation:
    """The chosen isolation, and the reasons against each stronger level."""

    isolation: SandboxIsolation
    passed_over: tuple[tuple[IsolationLevel, str], ...] = ()
    no_groups: str = ""
    """Why there are no control groups; empty if there are."""

    def __str__(self) -> str:
        over = "".join(f"; not {level}: {reason}" for level, reason in self.passed_over)
        bounds = "".join(f"; {name} {how}" for name, how in self.isolation.bounds.items())
        no_groups = f"; no control groups: {self.no_groups}" if self.no_groups else ""
        return f"{self.isolation.level} with {self.isolation.python.path}{bounds}{no_groups}{over}"


def choose(
    *,
    python: str | None = None,
    levels: Sequence[IsolationLevel] = (IsolationLevel.BUBBLEWRAP, IsolationLevel.LANDLOCK),
    allow_rlimits: bool = False,
) -> ChosenIsolation:
    """Return the strongest of `levels` that works on this machine, for the Python at `python` or one that is found.
    Resource limits alone are tried last, if `allow_rlimits` is set. Raises `SandboxUnavailable`."""
    groups, no_groups = find_group_parent()
    over: list[tuple[IsolationLevel, str]] = []
    for level in (*levels, *((IsolationLevel.RLIMITS,) if allow_rlimits else ())):
        for path in [python] if python else candidates():
            isolation, reason = _strongest(level, interpreter(path), groups)
            if isolation:
                return ChosenIsolation(isolation=isolation, passed_over=tuple(over), no_groups=no_groups or reason)
            over.append((level, f"{path}: {reason}"))
    reasons_text = "; ".join(f"{level}: {reason}" for level, reason in over)
    raise SandboxUnavailable(f"no isolation works on this machine, so no code is run; {ADVICE} ({reasons_text})")


def _strongest(
    level: IsolationLevel, python: Interpreter, groups: GroupParent | None
) -> tuple[SandboxIsolation | None, str]:
    """Return the level with as many kernel limits as work here, or None; and the reason against more."""
    if level is IsolationLevel.BUBBLEWRAP and not shutil.which("bwrap"):
        return None, "bwrap is not installed"
    may_mount = level is not IsolationLevel.BUBBLEWRAP and os.geteuid() == 0
    reason = ""
    for parent, own_disk in dict.fromkeys(itertools.product((groups, None), (may_mount, False))):
        isolation = SandboxIsolation(level=level, python=python, groups=parent, own_disk=own_disk)
        if not (failed := probe(isolation)):
            return isolation, reason if parent is None else ""
        reason = failed
    return None, reason


def probe(isolation: SandboxIsolation) -> str:
    """Test an isolation on this machine. Returns the reason why it does not hold, empty if it does."""
    with tempfile.NamedTemporaryFile() as secret, socket.create_server(("127.0.0.1", 0)) as server:
        os.chmod(secret.name, 0o666)
        code = PROBE.format(secret=secret.name, port=server.getsockname()[1])
        try:
            run = run_program(Program(code=code), PROBE_LIMITS, isolation)
        except SandboxBroken as error:
            return str(error)
    if run.stdout == HOLDS or (isolation.level is IsolationLevel.RLIMITS and "runs 42" in run.stdout):
        return ""
    return f"the probe printed {run.stdout!r}, {run.stderr[-300:]!r} {run.detail}".strip()
