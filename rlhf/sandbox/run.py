"""One program run to its end, on the calling thread."""

from __future__ import annotations

import contextlib
import os
import subprocess

from rlhf.sandbox.isolation import Isolation, Place, Rung, place
from rlhf.sandbox.limits import Limits
from rlhf.sandbox.orders import Orders, Verdict, unpack_verdict
from rlhf.sandbox.program import Ending, Program, Run, SandboxBroken

MAIN = "main.py"
GRACE_SECONDS = 30.0
"""Beyond the run's own time: for the warden to start, move files, end everything and report."""
STOP_SECONDS = 15.0
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def run(program: Program, ceiling: Limits, isolation: Isolation) -> Run:
    """What becomes of `program` within the stricter of its limits and `ceiling`.

    Call it on a thread that outlives the run: the kernel ends the sandbox with the thread that started it. Raises
    `SandboxBroken` when the sandbox is to blame.
    """
    limits = ceiling.within(program.wall_seconds, program.memory_bytes)
    if wrong := _wrong_path(program):
        return Run(ending=Ending.REFUSED, return_code=None, stdout="", stderr="", seconds=0.0, detail=wrong)
    try:
        with place(isolation, limits, two_users=program.two_users) as here:
            return _as_run(_ask(here, _orders(program, limits, isolation, here), isolation.rung))
    except OSError as error:
        raise SandboxBroken(f"the sandbox ({isolation.rung}) could not run a program: {error}") from error


def _orders(program: Program, limits: Limits, isolation: Isolation, here: Place) -> Orders:
    folder = here.cage.folder
    return Orders(
        command=(isolation.python.path, f"{folder}/{MAIN}"),
        environment=ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
        files={**program.files, MAIN: program.code.encode(errors="replace")},
        fetch=program.fetch,
        stdin=program.stdin,
        limits=limits,
        cage=here.cage,
        parent=here.parent,
    )


def _ask(here: Place, orders: Orders, rung: Rung) -> Verdict:
    """The warden's verdict. Raises `SandboxBroken`, and leaves no process either way."""
    timeout_seconds = orders.limits.wall_seconds + GRACE_SECONDS
    warden = subprocess.Popen(
        here.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        start_new_session=True,
        pass_fds=here.descriptors,
    )
    try:
        answer, complaint = warden.communicate(orders.pack(), timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise SandboxBroken(f"the sandbox ({rung}) did not answer within {timeout_seconds:g} s") from None
    finally:
        _stop(warden)
    if warden.returncode != 0:
        said = complaint.decode(errors="replace").strip().rpartition("\n")[2][:500]
        raise SandboxBroken(f"the sandbox ({rung}) failed with exit code {warden.returncode}: {said}")
    return unpack_verdict(answer)


def _stop(warden: subprocess.Popen[bytes]) -> None:
    """End a warden that is still there: it is asked first, since outside a namespace only it can end its run."""
    if warden.poll() is None:
        warden.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            warden.wait(STOP_SECONDS)
        warden.kill()
        warden.wait(STOP_SECONDS)
    for pipe in (warden.stdin, warden.stdout, warden.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _as_run(verdict: Verdict) -> Run:
    return Run(
        ending=Ending(verdict.ending),
        return_code=verdict.return_code,
        stdout=verdict.stdout.decode(errors="replace"),
        stderr=verdict.stderr.decode(errors="replace"),
        seconds=verdict.seconds,
        detail=verdict.detail,
        files=verdict.files,
    )


def _wrong_path(program: Program) -> str:
    for path in (*program.files, *program.fetch):
        parts = path.split("/")
        if not path or "\0" in path or os.path.isabs(path) or ".." in parts:
            return f"{path!r} is no path inside the folder the program runs in; give a relative one"
    return ""
