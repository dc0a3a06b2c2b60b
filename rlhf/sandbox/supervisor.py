"""The supervisor process of one run: starts the program in its jail, monitors it, kills all its processes, and reports.

The supervisor is not in the jail, and the program cannot reach it: it has another user id, or is the first process of
its namespace, or is outside the program's Landlock domain, and its memory is not readable. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from types import FrameType

from rlhf.sandbox.confine import confine
from rlhf.sandbox.descendants import (
    Survivors,
    Unmeasured,
    end_all,
    memory_bytes,
    nameless_bytes,
    oom_killed,
    own_descendants,
    reaped,
    threads,
)
from rlhf.sandbox.disk import filled, mount_own, unmount
from rlhf.sandbox.folder import Inside, disk_use, fetch_files, write_files
from rlhf.sandbox.limits import SandboxLimits
from rlhf.sandbox.removal import remove
from rlhf.sandbox.run_request import Jail, RunReport, RunRequest, unpack_request
from rlhf.sandbox.streams import Streams

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
LOOK_SECONDS = 0.04
"""Seconds between two measurements of the run; between them the run can exceed its limits."""
CANNOT_START = 126
REFUSED = "refused: "
MIB = 1024 * 1024


def supervisor_main() -> None:
    """Read the request, carry it out, write the report. Exit code 3 with a line on standard error: the program is not
    the cause."""
    request = unpack_request(sys.stdin.buffer.read())
    _prepare(request)
    try:
        verdict = carry_out(request)
    except Ended:
        _remove(request.jail)  # the process that would remove it has died
        raise
    except OSError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}")
        raise SystemExit(3) from None
    sys.stdout.buffer.write(verdict.pack())


def carry_out(request: RunRequest) -> RunReport:
    """Run the program, from input files to output files. No process of it is left when this returns or raises."""
    try:
        return _run(request)
    except RunRefused as error:
        return _verdict("refused", None, str(error), 0.0, {}, (b"", b""))
    finally:
        with contextlib.suppress(Survivors):  # it is in the report; the run's namespace or group ends them
            end_all(request.jail)


def _run(request: RunRequest) -> RunReport:
    streams = Streams(request.stdin, request.limits.output_bytes)
    child = _start(request, streams)
    started = time.monotonic()
    ending, code, detail = _watch(child, streams, request, started + request.limits.wall_seconds)
    seconds = time.monotonic() - started
    try:
        end_all(request.jail)
    except Survivors as error:
        ending, code, detail = "excess", None, str(error)
    output = streams.finish()
    try:
        files = fetch_files(request.fetch, request.jail, request.limits)
    except Inside as error:
        files, detail = {}, f"{detail}; no files: {error}".lstrip("; ")
    return _verdict(ending, code, detail, seconds, files, output)


def _start(request: RunRequest, streams: Streams) -> int:
    """Start the program and return its process id after exec. Raises `RunRefused` if its limits do not let it start,
    and `OSError` if it cannot start for another reason."""
    receive, send = os.pipe()  # closes on exec
    if (child := os.fork()) == 0:
        _become(request, streams, send)
    os.close(send)
    streams.let_go()
    with open(receive, "rb") as pipe:
        complaint = pipe.read().decode(errors="replace")
    if complaint.startswith(REFUSED):
        raise RunRefused(complaint.removeprefix(REFUSED))
    if complaint:
        raise OSError(f"the code could not be started: {complaint}")
    return child


def _become(request: RunRequest, streams: Streams, send: int) -> None:
    """In the child: enter the jail, write the files with the program's own rights, and execute the program. Never
    returns."""
    writing = False
    try:
        streams.become_standard()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        confine(request.jail, request.limits)
        os.setsid()
        writing = True
        write_files(request.files)
        writing = False
        os.execve(request.command[0], request.command, dict(request.environment))
    except (OSError, RecursionError) as error:
        blame = f"{REFUSED}files cannot be written: " if writing else ""
        os.write(send, f"{blame}{type(error).__name__}: {error}"[:1000].encode(errors="replace"))
    except MemoryError:
        os.write(send, f"{REFUSED}{request.limits.memory_bytes} bytes of memory are too few to start in".encode())
    finally:
        os._exit(CANNOT_START)


def _watch(child: int, streams: Streams, request: RunRequest, deadline: float) -> tuple[str, int | None, str]:
    """Wait until the program ends, its time is over or it exceeds a limit: the reason, its return code, and the
    detail."""
    over, looked = os.pidfd_open(child), time.monotonic()
    try:
        while True:
            streams.pump(min(LOOK_SECONDS, max(deadline - time.monotonic(), 0.0)), over)
            status = dict(reaped()).get(child)
            if status is not None:
                if excess := _killed(request):  # it, or one of its processes, unnoticed by the program
                    return "excess", None, excess
                return "exited", os.waitstatus_to_exitcode(status), ""
            if time.monotonic() >= deadline:
                return "time", None, f"killed after {request.limits.wall_seconds:g} s"
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                if excess := _excess(request, child):
                    return "excess", None, excess
    finally:
        os.close(over)


def _excess(request: RunRequest, child: int) -> str:
    """The limit that the run exceeds, as the detail of its report; empty if there is none. `child` is its first
    process."""
    grouped, sized = bool(request.jail.entrances), request.jail.sized
    running = [] if grouped and sized else own_descendants()
    try:
        stored = _stored(request, running, child if request.jail.parts else None)
    except Unmeasured as error:
        return f"killed for {error}: what cannot be measured is too much"
    return (_killed(request) if grouped else _grown(request.limits, running)) or stored


def _killed(request: RunRequest) -> str:
    """The same, for memory limits enforced by the kernel."""
    events = request.jail.events
    return _more_than(f"{request.limits.memory_bytes // MIB} MiB of memory") if events and oom_killed(events) else ""


def _grown(limits: SandboxLimits, running: list[int]) -> str:
    """The same, for limits that only this process measures."""
    if memory_bytes(running, limits.memory_bytes) > limits.memory_bytes:
        return _more_than(f"{limits.memory_bytes // MIB} MiB of memory")
    return _more_than(f"{limits.processes} processes") if threads(running) > limits.processes else ""


def _stored(request: RunRequest, running: list[int], trusted: int | None) -> str:
    """The same, for files. Raises `Unmeasured`."""
    limits, folder = request.limits, request.jail.folder
    if request.jail.sized:
        stored, entries = filled(folder)
    else:
        stored, entries = disk_use(folder, limits.files)
        stored += nameless_bytes(running, folder, trusted)
    if entries > limits.files:
        return _more_than(f"{limits.files} files")
    return _more_than(f"{limits.disk_bytes // MIB} MiB of disk") if stored > limits.disk_bytes else ""


def _more_than(limit: str) -> str:
    return f"killed for using more than {limit}"


def _verdict(
    ending: str, code: int | None, detail: str, seconds: float, files: dict[str, bytes], output: tuple[bytes, bytes]
) -> RunReport:
    stdout, stderr = output
    return RunReport(
        ending=ending, return_code=code, stdout=stdout, stderr=stderr, seconds=seconds, detail=detail, files=files
    )


def _prepare(request: RunRequest) -> None:
    """Make this process adopt orphans, unreadable for others, and end the run when its parent dies."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # In a namespace the program could send SIGTERM; there the kernel ends the supervisor together with its parent.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if request.jail.alone else _end)
    if not request.jail.alone:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != request.parent:  # the parent died before the request reached the kernel
            raise SystemExit(1)
    _hand_over(request.jail, request.limits)


def _hand_over(jail: Jail, limits: SandboxLimits) -> None:
    for descriptor in (*jail.entrances, jail.events, jail.end):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # not inherited by the program
    if jail.sized and not jail.alone:
        mount_own(jail.folder, limits)
    if jail.second_uid is not None:
        os.chmod(jail.folder, 0o700)  # only for the first user
    if jail.uid is not None:
        os.chown(jail.folder, jail.uid, jail.uid)


def _remove(jail: Jail) -> None:
    if jail.sized:
        unmount(jail.folder)
    with contextlib.suppress(OSError):  # the next start of a service removes the rest
        remove(jail.folder)


class RunRefused(Exception):
    """The run cannot start within its limits."""


class Ended(SystemExit):
    """This process received SIGTERM."""


def _end(signum: int, frame: FrameType | None) -> None:
    raise Ended(128 + signum)
