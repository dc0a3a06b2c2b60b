"""Runs one program to its end on the calling thread."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rlhf.errors import SandboxBroken
from rlhf.sandbox import bubblewrap, landlock, run_supervisor
from rlhf.sandbox.groups import ControlGroup, control_group
from rlhf.sandbox.isolation import IsolationLevel, SandboxIsolation
from rlhf.sandbox.program import MIB, Program, ProgramResult, SandboxLimits, TerminationReason
from rlhf.sandbox.run_request import Jail, RunRequest, unpack_result

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
FIRST_UID, UIDS = 64000, 512
"""User ids for runs: in the range that every container maps, outside those that distributions assign."""
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
PACKAGE_ROOT = str(Path(__file__).parents[2])
START = "import sys; sys.path.insert(0, {root!r}); from {module} import supervisor_main; supervisor_main()"


def run_program(program: Program, ceiling: SandboxLimits, isolation: SandboxIsolation) -> ProgramResult:
    """Run `program` within its own limits and `ceiling`, whichever is lower, on a thread that outlives the run: the
    kernel kills the sandbox when the thread that started it ends. Raises `SandboxBroken` for failures of the
    sandbox."""
    limits = ceiling.within(program.wall_seconds, program.memory_bytes)
    if wrong := _wrong_path(program):
        return ProgramResult(ending=TerminationReason.REFUSED, detail=wrong)
    try:
        with contextlib.ExitStack() as stack:
            uid = stack.enter_context(lent_uid()) if os.geteuid() == 0 else None
            group = stack.enter_context(control_group(isolation.groups, limits)) if isolation.groups else None
            result = _supervise(isolation, _request(program, limits, isolation, _jail(isolation, uid, group)))
            if group and group.ran_out_of_memory():
                detail = f"killed for using more than {limits.memory_bytes // MIB} MiB of memory"
                return result._replace(ending=TerminationReason.EXCESS, return_code=None, detail=detail)
            return result
    except OSError as error:
        raise SandboxBroken(f"the sandbox ({isolation.level}) could not run a program: {error}") from error


@contextlib.contextmanager
def lent_uid() -> Iterator[int]:
    """Reserve a user id that no other run on this machine has, by an abstract unix socket, which the kernel releases
    when this process dies. Raises `SandboxBroken` when all are in use."""
    for uid in range(FIRST_UID, FIRST_UID + UIDS):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0rlhf-sandbox-uid-{uid}")
            except OSError:
                continue
            yield uid
            return
    raise SandboxBroken(f"{UIDS} runs have a user id already")


def _jail(isolation: SandboxIsolation, uid: int | None, group: ControlGroup | None) -> Jail:
    alone = isolation.level is IsolationLevel.BUBBLEWRAP
    closed = isolation.level is IsolationLevel.LANDLOCK
    return Jail(
        folder=bubblewrap.FOLDER if alone else f"{_scratch_parent()}/rlhf-sandbox-{secrets.token_hex(8)}",
        uid=uid,
        # In namespaces Landlock is a second wall: nothing else protects files of the same user in /proc.
        landlock=closed or (alone and landlock.version() > 0),
        filtered=closed or alone,
        alone=alone,
        sized=isolation.sized,
        entrance=group.entrance if group else None,
        readable=(*isolation.python.readable, "/proc") if alone else isolation.python.readable,
        # A shared mapping of /dev/zero is memory that only a control group counts.
        devices=(*DEVICES, "/dev/zero") if group else DEVICES,
    )


def _request(program: Program, limits: SandboxLimits, isolation: SandboxIsolation, jail: Jail) -> RunRequest:
    return RunRequest(
        command=(isolation.python.path, f"{jail.folder}/{MAIN}"),
        environment=ENVIRONMENT | {"HOME": jail.folder, "TMPDIR": jail.folder},
        files={**program.files, MAIN: program.code.encode(errors="replace")},
        fetch=program.fetch,
        stdin=program.stdin,
        limits=limits,
        jail=jail,
    )


def _supervise(isolation: SandboxIsolation, request: RunRequest) -> ProgramResult:
    """Return the result that the supervisor reports. Raises `SandboxBroken`. No process is left in either case."""
    timeout_seconds = request.limits.wall_seconds + GRACE_SECONDS
    with subprocess.Popen(
        _command(isolation, request),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        start_new_session=True,
        pass_fds=() if request.jail.entrance is None else (request.jail.entrance,),
    ) as process:
        try:
            answer, complaint = process.communicate(request.pack(), timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            message = f"the sandbox ({isolation.level}) did not answer within {timeout_seconds:g} s"
            raise SandboxBroken(message) from None
        finally:
            if process.poll() is None:
                process.terminate()  # outside a namespace only the supervisor can end its run
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
                process.kill()
    if process.returncode != 0:
        last_line = complaint.decode(errors="replace").strip().rpartition("\n")[2][:500]
        raise SandboxBroken(f"the sandbox ({isolation.level}) failed with exit code {process.returncode}: {last_line}")
    return unpack_result(answer)


def _command(isolation: SandboxIsolation, request: RunRequest) -> tuple[str, ...]:
    alone = request.jail.alone
    start = START.format(root=bubblewrap.PACKAGE_ROOT if alone else PACKAGE_ROOT, module=run_supervisor.__name__)
    command = (isolation.python.path, "-I", "-S", "-c", start)
    if not alone:
        return command
    return *bubblewrap.bubblewrap_command(PACKAGE_ROOT, isolation.python, request.jail, request.limits), *command


def _wrong_path(program: Program) -> str:
    for path in (*program.files, *program.fetch):
        parts = path.split("/")
        if not path or "\0" in path or os.path.isabs(path) or ".." in parts:
            return f"{path!r} is not a path inside the folder the program runs in; give a relative one"
    return ""


def _scratch_parent() -> str:
    """Return the folder for programs' folders: if programs run as other users, one that these can reach."""
    usual = Path(tempfile.gettempdir())
    passable = all(above.stat().st_mode & stat.S_IXOTH for above in (usual, *usual.parents))
    return str(usual) if passable or os.geteuid() else "/tmp"
