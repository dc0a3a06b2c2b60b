"""The supervisor process of one run: starts the program in its jail, monitors it, kills all its processes, and reports.
The program cannot reach it: it has another user id, or is the first process of its namespace, or is outside the
program's Landlock domain, and its memory is not readable. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from rlhf.sandbox import landlock, seccomp
from rlhf.sandbox.folder import NotFetched, folder_use, make_folder, read_files, remove_folder, write_files
from rlhf.sandbox.program import MIB, ProgramResult, SandboxLimits, TerminationReason
from rlhf.sandbox.run_request import Jail, RunRequest, pack_fields, unpack_request

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
LOOK_SECONDS = 0.05
"""Seconds between two measurements of the folder."""
REAP_SECONDS, PIPE_SECONDS, PAUSE_SECONDS = 10.0, 5.0, 0.002
CHUNK_BYTES, CANNOT_START = 1 << 16, 126
REFUSED = "refused: "


class RunRefused(Exception):
    """The run cannot start within its limits."""


def supervisor_main() -> None:
    """Read the request, carry it out, write the report. Exit code 3, with a line on stderr, is not the program's."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # before the request is read: a parent that is dead sends none
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # adopt orphans of the run
    prctl(PR_SET_DUMPABLE, 0)  # no other process may read this one's memory
    request = unpack_request(sys.stdin.buffer.read())
    if request.jail.entrance is not None:
        os.set_inheritable(request.jail.entrance, False)  # not inherited by the program
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # In a namespace the program could send SIGTERM; there the kernel ends the supervisor together with its parent.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if request.jail.alone else _end)
    try:
        report = carry_out(request)
    except OSError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}")
        raise SystemExit(3) from None
    sys.stdout.buffer.write(pack_fields(report._asdict()))


def carry_out(request: RunRequest) -> ProgramResult:
    """Run the program, from input files to output files. Nothing of it is left when this returns or raises."""
    try:
        make_folder(request.jail, request.limits)
        return _run(request)
    except RunRefused as error:
        return ProgramResult(TerminationReason.REFUSED, None, str(error))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all(request.jail)
        with contextlib.suppress(OSError):
            remove_folder(request.jail)


def end_all(jail: Jail) -> bool:
    """Kill all processes of the run, and wait until they have ended. False if some did not end in time."""
    deadline = time.monotonic() + REAP_SECONDS
    while _has_children():  # orphans become children of this process
        if time.monotonic() > deadline:
            return False
        _kill(jail)
        time.sleep(PAUSE_SECONDS)
    return True


class Output:
    """A pipe for the program's output. A thread reads it to its end; bytes after the first `most` are dropped."""

    def __init__(self, most: int) -> None:
        self.read_end, self.write_end = os.pipe()
        self._most, self._kept, self._dropped = most, bytearray(), 0
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Begin to read, after the program's process has its copy of the pipe."""
        os.close(self.write_end)
        self._thread.start()

    def text(self) -> str:
        """Return the kept output, after the end of all processes; a line at its end says how much was dropped."""
        self._thread.join(PIPE_SECONDS)  # the pipe ends with the last process
        note = f"\n[the sandbox dropped {self._dropped} bytes after the first {self._most}]\n" if self._dropped else ""
        return bytes(self._kept).decode(errors="replace") + note

    def _read(self) -> None:
        while chunk := os.read(self.read_end, CHUNK_BYTES):
            room = self._most - len(self._kept)
            self._kept += chunk[:room]
            self._dropped += len(chunk) - len(chunk[:room])


def _run(request: RunRequest) -> ProgramResult:
    outputs = Output(request.limits.output_bytes), Output(request.limits.output_bytes)
    child = _start(request, *outputs)
    started = time.monotonic()
    report = _watch(child, request, started + request.limits.wall_seconds)
    seconds = time.monotonic() - started
    if not end_all(request.jail):
        report = ProgramResult(
            TerminationReason.EXCESS, None, f"processes of the run did not end within {REAP_SECONDS:g} s"
        )
    stdout, stderr = (output.text() for output in outputs)
    report = report._replace(seconds=seconds, stdout=stdout, stderr=stderr)
    try:
        return report._replace(files=read_files(request.jail.folder, request.fetch, request.limits.fetched_bytes))
    except NotFetched as error:
        return report._replace(detail=f"{report.detail}; no files: {error}".lstrip("; "))


def _start(request: RunRequest, stdout: Output, stderr: Output) -> int:
    """Start the program and return its process id after exec. Raises `RunRefused` and `OSError`."""
    receive, send = os.pipe()  # closes on exec
    stdin, feed = os.pipe()
    if (child := os.fork()) == 0:
        _become(request, (stdin, stdout.write_end, stderr.write_end), send)
    os.close(send)
    os.close(stdin)
    stdout.start()
    stderr.start()
    with open(receive, "rb") as pipe:
        complaint = pipe.read().decode(errors="replace")
    if complaint.startswith(REFUSED):
        raise RunRefused(complaint.removeprefix(REFUSED))
    if complaint:
        raise OSError(f"the code could not be started: {complaint}")
    threading.Thread(target=_feed, args=(feed, request.stdin), daemon=True).start()
    return child


def _feed(pipe: int, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(pipe, "wb", buffering=0) as file:  # it may close its input unread
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]


def _become(request: RunRequest, standard: tuple[int, int, int], send: int) -> None:
    """Enter the jail in the child, write the files with the program's rights, and execute the program. Never
    returns."""
    writing = False
    try:
        for descriptor, pipe in enumerate(standard):
            os.dup2(pipe, descriptor)
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


def confine(jail: Jail, limits: SandboxLimits) -> None:
    """Restrict this process for good. Raises `OSError`; then the program must not run."""
    if jail.entrance is not None:
        os.write(jail.entrance, b"0")
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 1)  # the supervisor is not dumpable, and such a process may not write to its own /proc
    os.chdir(jail.folder)
    os.umask(0o077)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # the first process to be killed if the machine is short of memory
    _limit_resources(limits, jail.uid)
    libc.prctl(PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))
    if jail.landlock:
        landlock.restrict(jail.folder, jail.readable, jail.devices)
    if jail.uid is not None:
        os.setgroups([])
        os.setresgid(jail.uid, jail.uid, jail.uid)
        os.setresuid(jail.uid, jail.uid, jail.uid)
    if jail.filtered:
        seccomp.install(jail)


def _limit_resources(limits: SandboxLimits, uid: int | None) -> None:
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_NPROC: limits.processes + (_others() if uid is None else 0),
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CPU: math.ceil(limits.wall_seconds) + 1,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: limits.open_files,
    }
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))


def _others() -> int:
    """Count the processes and threads that this user has already: the kernel's limit includes them."""
    user, count = os.getuid(), 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                count += len(os.listdir(f"/proc/{process}/task"))
        except OSError:
            continue  # the process has ended
    return count


def _watch(child: int, request: RunRequest, deadline: float) -> ProgramResult:
    """Wait until the program ends, its time is over or its folder exceeds a limit: the report without its output."""
    over = os.pidfd_open(child)
    poll = select.poll()
    poll.register(over, select.POLLIN)
    try:
        while True:
            poll.poll(1000 * min(LOOK_SECONDS, max(deadline - time.monotonic(), 0.0)))
            for process, status in _reaped():
                if process == child:
                    return ProgramResult(TerminationReason.EXITED, os.waitstatus_to_exitcode(status))
            if time.monotonic() >= deadline:
                return ProgramResult(TerminationReason.TIME, None, f"killed after {request.limits.wall_seconds:g} s")
            if excess := _excess(request.jail, request.limits):
                return ProgramResult(TerminationReason.EXCESS, None, f"killed for {excess}")
    finally:
        os.close(over)


def _excess(jail: Jail, limits: SandboxLimits) -> str:
    """Return the limit of the folder that the run exceeds; empty if it exceeds none."""
    try:
        used_bytes, entries = folder_use(jail, limits.files)
    except OSError as error:
        return f"a folder that cannot be read ({error.strerror}), so that its size is unknown"
    if entries > limits.files:
        return f"using more than {limits.files} files"
    return f"using more than {limits.disk_bytes // MIB} MiB of disk" if used_bytes > limits.disk_bytes else ""


def _reaped() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended; yields each with its wait status."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _has_children() -> bool:
    """Whether children are left after those that have ended are reaped."""
    for _ in _reaped():
        pass
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill(jail: Jail) -> None:
    if jail.alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # every process of the namespace except its first one
    elif jail.uid is not None:
        _kill_user(jail.uid)
    else:
        for process in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _kill_user(uid: int) -> None:
    """Kill all processes of that user in one call, so that no fork can escape."""
    if (child := os.fork()) == 0:
        os.setresuid(uid, uid, uid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)


def _descendants() -> list[int]:
    """Return all processes below this one; the supervisor adopts orphans."""
    found = [os.getpid()]
    for process in found:  # the list grows during the loop
        with contextlib.suppress(OSError):  # the process has ended
            for task in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{task}/children") as file:
                    found += map(int, file.read().split())
    return found[1:]


def _end(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the run is not interrupted
    raise SystemExit(128 + signum)
