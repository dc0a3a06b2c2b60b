"""Runs one program to its end on the calling thread."""

from __future__ import annotations

import contextlib
import os
import subprocess

from rlhf.sandbox.isolation import IsolationLevel, SandboxIsolation, SupervisorLaunch, place
from rlhf.sandbox.limits import SandboxLimits
from rlhf.sandbox.program import Program, ProgramResult, SandboxBroken, TerminationReason
from rlhf.sandbox.run_request import RunReport, RunRequest, unpack_report

MAIN = "main.py"
GRACE_SECONDS = 30.0
"""Added to the run's own time limit: for the supervisor to start, copy files, kill all processes and report."""
STOP_SECONDS = 15.0
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MALLOC_ARENA_MAX": "2",  # each has 64 MiB of addresses, one for each thread
}


def run_program(program: Program, ceiling: SandboxLimits, isolation: SandboxIsolation) -> ProgramResult:
    """Run `program` within its own limits and `ceiling`, whichever is lower.

    Call it on a thread that outlives the run: the kernel kills the sandbox when the thread that started it ends. Raises
    `SandboxBroken` for failures of the sandbox.
    """
    limits = ceiling.within(program.wall_seconds, program.memory_bytes)
    if wrong := _wrong_path(program):
        return ProgramResult(
            ending=TerminationReason.REFUSED, return_code=None, stdout="", stderr="", seconds=0.0, detail=wrong
        )
    try:
        with place(isolation, limits, two_users=program.two_users) as here:
            return _as_run(_ask(here, _orders(program, limits, isolation, here), isolation.level))
    except OSError as error:
        raise SandboxBroken(f"the sandbox ({isolation.level}) could not run a program: {error}") from error


def _orders(program: Program, limits: SandboxLimits, isolation: SandboxIsolation, here: SupervisorLaunch) -> RunRequest:
    folder = here.jail.folder
    return RunRequest(
        command=(isolation.python.path, f"{folder}/{MAIN}"),
        environment=ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
        files={**program.files, MAIN: program.code.encode(errors="replace")},
        fetch=program.fetch,
        stdin=program.stdin,
        limits=limits,
        jail=here.jail,
        parent=here.parent,
    )


def _ask(here: SupervisorLaunch, request: RunRequest, level: IsolationLevel) -> RunReport:
    """The supervisor's report. Raises `SandboxBroken`. No process is left in either case."""
    timeout_seconds = request.limits.wall_seconds + GRACE_SECONDS
    supervisor = subprocess.Popen(
        here.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        start_new_session=True,
        pass_fds=here.descriptors,
    )
    try:
        answer, complaint = supervisor.communicate(request.pack(), timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise SandboxBroken(f"the sandbox ({level}) did not answer within {timeout_seconds:g} s") from None
    finally:
        _stop(supervisor)
    if supervisor.returncode != 0:
        said = complaint.decode(errors="replace").strip().rpartition("\n")[2][:500]
        raise SandboxBroken(f"the sandbox ({level}) failed with exit code {supervisor.returncode}: {said}")
    return unpack_report(answer)


def _stop(supervisor: subprocess.Popen[bytes]) -> None:
    """Stop a supervisor that still runs. SIGTERM comes first, because outside a namespace only the supervisor can end
    its run."""
    if supervisor.poll() is None:
        supervisor.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(STOP_SECONDS)
        supervisor.kill()
        supervisor.wait(STOP_SECONDS)
    for pipe in (supervisor.stdin, supervisor.stdout, supervisor.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _as_run(verdict: RunReport) -> ProgramResult:
    return ProgramResult(
        ending=TerminationReason(verdict.ending),
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
