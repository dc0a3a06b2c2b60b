"""Runs one program to its end on the calling thread."""

from __future__ import annotations

import contextlib
import os
import subprocess

from rlhf.sandbox.isolation import IsolationLevel, SandboxIsolation, SupervisorLaunch, launch
from rlhf.sandbox.limits import MIB, SandboxLimits
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
        return _result(RunReport(TerminationReason.REFUSED, None, wrong))
    try:
        with launch(isolation, limits) as start:
            report = _ask(start, _request(program, limits, isolation, start), isolation.level)
            if start.group and start.group.ran_out_of_memory():
                detail = f"killed for using more than {limits.memory_bytes // MIB} MiB of memory"
                report = report._replace(ending=TerminationReason.EXCESS, return_code=None, detail=detail)
            return _result(report)
    except OSError as error:
        raise SandboxBroken(f"the sandbox ({isolation.level}) could not run a program: {error}") from error


def _request(
    program: Program, limits: SandboxLimits, isolation: SandboxIsolation, start: SupervisorLaunch
) -> RunRequest:
    folder = start.jail.folder
    return RunRequest(
        command=(isolation.python.path, f"{folder}/{MAIN}"),
        environment=ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
        files={**program.files, MAIN: program.code.encode(errors="replace")},
        fetch=program.fetch,
        stdin=program.stdin,
        limits=limits,
        jail=start.jail,
        parent=start.parent,
    )


def _ask(start: SupervisorLaunch, request: RunRequest, level: IsolationLevel) -> RunReport:
    """The supervisor's report. Raises `SandboxBroken`. No process is left in either case."""
    timeout_seconds = request.limits.wall_seconds + GRACE_SECONDS
    supervisor = subprocess.Popen(
        start.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        start_new_session=True,
        pass_fds=() if start.group is None else (start.group.entrance,),
    )
    try:
        answer, complaint = supervisor.communicate(request.pack(), timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise SandboxBroken(f"the sandbox ({level}) did not answer within {timeout_seconds:g} s") from None
    finally:
        _stop(supervisor)
    if supervisor.returncode != 0:
        last_line = complaint.decode(errors="replace").strip().rpartition("\n")[2][:500]
        raise SandboxBroken(f"the sandbox ({level}) failed with exit code {supervisor.returncode}: {last_line}")
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


def _result(report: RunReport) -> ProgramResult:
    return ProgramResult(
        ending=TerminationReason(report.ending),
        return_code=report.return_code,
        stdout=report.stdout.decode(errors="replace"),
        stderr=report.stderr.decode(errors="replace"),
        seconds=report.seconds,
        detail=report.detail,
        files=report.files,
    )


def _wrong_path(program: Program) -> str:
    for path in (*program.files, *program.fetch):
        parts = path.split("/")
        if not path or "\0" in path or os.path.isabs(path) or ".." in parts:
            return f"{path!r} is not a path inside the folder the program runs in; give a relative one"
    return ""
