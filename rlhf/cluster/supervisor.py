"""Run a program under a guard, so that no process, shared memory or temporary folder is left when it ends.

The guard is the process that the shell started; it forks the program. It is a subreaper: a process below it that loses
its parent, a double-forked daemon included, becomes its child, so it finds every process of the program.

    program killed  ->  the guard sees its child end, and cleans up
    program silent  ->  the guard kills it, and cleans up
    guard killed    ->  the kernel sends SIGTERM to the program, which ends in order and cleans up itself

Nothing cleans up when both are killed at the same moment. Linux only. Call `supervise` before any thread is started,
because a parent-death signal belongs to the thread that forked.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Never, NoReturn

import psutil

from rlhf.cluster.console import lasting
from rlhf.cluster.leftovers import Leftovers, reap_all
from rlhf.cluster.stacks import ask_for_stacks

LONGEST_PARENT = 28
"""Longest parent path of a folder for Ray's sockets: a socket's path has at most 107 bytes, and Ray's names take 76."""
LONGEST_SCRATCH_PARENT = LONGEST_PARENT - len("/rlhf-12345678")
ECHO_SECONDS = 0.5
"""One Ctrl-C may arrive several times within this time: from a process group's sender, and passed on by the guard."""
GRACE_SECONDS = 20.0
"""Time that a program has to end after SIGTERM or Ctrl-C before it is killed."""
TICK_SECONDS = 0.5
BEAT_SECONDS = 1.0
PULSE_BYTES, LONGEST_CAUSE = 1 << 16, 4000
"""The capacity of a pipe; and the most that it takes in one piece, less the end of the line."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDINGS = {signal.SIGTERM, signal.SIGINT}
if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
    ENDINGS.add(signal.SIGHUP)
"""Signals that ask a program to end. Below `nohup` SIGHUP does not."""
HANDLED = {signal.SIGCHLD, signal.SIGUSR1, *ENDINGS}
SI_KERNEL = 0x80
"""`si_code` of a signal sent by the kernel, such as a terminal's Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended. `code` is its exit code, 128 + n when signal n ended it. `cause` says why, if a restart may
    cure its failure. `began`: whether it ever sent a heartbeat."""

    code: int
    cause: str | None
    began: bool


class Pulse:
    """A program's messages to its guard: that its event loop turns, and a failure that a new start may mend."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        os.set_blocking(pipe, False)  # a guard that is stopped does not read

    async def beat(self) -> Never:
        """Beat for as long as the event loop turns."""
        while True:
            self._send("")
            await asyncio.sleep(BEAT_SECONDS)

    def fail(self, cause: str) -> None:
        """Report the cause of a failure that a restart may cure."""
        self._send(" ".join(cause.split()))

    def _send(self, line: str) -> None:
        with suppress(OSError):  # the guard does not read, or was killed
            os.write(self._pipe, line.encode()[:LONGEST_CAUSE] + b"\n")


GuardedProgram = Callable[[Pulse], int]


def supervise(main: Callable[[], int], *, grace_seconds: float = 0.0) -> int:
    """Run `main` in its own process and return its exit code, or 128 + n when signal n ended it.

    SIGTERM and Ctrl-C are passed to `main`, which has `GRACE_SECONDS` to end, and `grace_seconds` more. SIGHUP, of a
    terminal that closes, is passed on as Ctrl-C; `main` and what it starts ignore their own.
    Temporary files of `main` and of all processes below it (`TMPDIR`) go to a folder that is removed at the end. Unless
    a terminal is attached, `main` leads a process group, so that each signal reaches it once.
    """
    return supervise_starts(lambda pulse: main(), lambda ended: None, grace_seconds=grace_seconds)


def supervise_starts(
    program: GuardedProgram,
    start_after: Callable[[Ended], GuardedProgram | None],
    *,
    silence_seconds: float = math.inf,
    saves_at_ctrl_c: bool = False,
    grace_seconds: float = 0.0,
) -> int:
    """Run `program` as `supervise` does; after it has ended and all of it is removed, run what `start_after` returns,
    until it returns None. Returns the exit code of the last.

    SIGUSR1 is passed on without a deadline, and so is the first Ctrl-C if the program then saves (`saves_at_ctrl_c`).
    A program that has beaten, and then does not for `silence_seconds`, writes its stacks if it can, and is killed.
    """
    sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr)
    become_subreaper()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    following: GuardedProgram | None = program
    while following is not None:
        watch = _Watch(silence_seconds, grace_seconds, saves_at_ctrl_c=saves_at_ctrl_c)
        ended = _supervise_once(following, watch, mask)
        following = start_after(ended)
    _drained_signals()  # it ends anyway, with its own exit code
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ended.code


def _supervise_once(program: GuardedProgram, watch: _Watch, mask: set[int | signal.Signals]) -> Ended:
    leftovers = Leftovers(socket_folder("rlhf-", LONGEST_SCRATCH_PARENT))
    sys.stdout.flush()
    sys.stderr.flush()
    guard, interactive = os.getpid(), os.isatty(0)
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        if not interactive:
            os.setpgid(0, 0)
        _become_program(guard, partial(program, Pulse(told)), leftovers, mask)
    os.close(told)
    os.set_blocking(heard, False)
    try:
        status = watch.until_end(child, heard, leftovers, shares_terminal=interactive)
    finally:
        os.close(heard)
    leftovers.remove()
    watch.asked_to_end |= bool(_drained_signals() - {signal.SIGCHLD})
    return watch.ended(status)


def _drained_signals() -> set[int]:
    """Take the signals that wait, and return their numbers."""
    found = set()
    while event := signal.sigtimedwait(HANDLED, 0):
        found.add(event.si_signo)
    return found


class _Watch:
    """Waits for the end of one program, passes signals on to it, and watches its pulse."""

    def __init__(self, silence_seconds: float, grace_seconds: float, *, saves_at_ctrl_c: bool) -> None:
        self.asked_to_end = False
        self._silence_seconds, self._grace_seconds = silence_seconds, GRACE_SECONDS + grace_seconds
        self._patient_until = math.inf if saves_at_ctrl_c else -math.inf
        self._kill_at: float | None = None
        self._began, self._silent_seconds = False, 0.0
        self._cause: str | None = None

    def until_end(self, program: int, pulse: int, leftovers: Leftovers, *, shares_terminal: bool) -> int:
        """Return the program's wait status; reap all other children too."""
        looked_at = time.monotonic()
        while True:
            event = signal.sigtimedwait(HANDLED, TICK_SECONDS)
            # After the machine was suspended, CPython may return an event that was never filled in, with any number.
            if event is not None and event.si_signo in HANDLED and event.si_signo != signal.SIGCHLD:
                self._pass_on(program, event, shares_terminal=shares_terminal)
            ended = reap_all()
            now = time.monotonic()
            self._hear(pulse, min(now - looked_at, 2 * TICK_SECONDS))  # while this process is stopped, so is the other
            looked_at = now
            if program in ended:
                return ended[program]
            if self._silent_seconds > self._silence_seconds:
                self._end_silence(program, leftovers)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                os.kill(program, signal.SIGKILL)

    def ended(self, status: int) -> Ended:
        """Return how the program ended, and print what its end by a signal was."""
        code, cause = os.waitstatus_to_exitcode(status), self._cause
        if code < 0:
            cause = cause or f"the controller was killed by {signal.Signals(-code).name}"
            print(f"rlhf: {cause}", file=sys.stderr, flush=True)
            code = 128 - code
        return Ended(code=code, cause=None if self.asked_to_end else cause, began=self._began)

    def _pass_on(self, program: int, event: signal.struct_siginfo, *, shares_terminal: bool) -> None:
        now, self.asked_to_end = time.monotonic(), True
        number = signal.SIGINT if event.si_signo == signal.SIGHUP else event.si_signo
        if number == signal.SIGINT and now < self._patient_until:
            self._patient_until = min(self._patient_until, now + ECHO_SECONDS)
        elif number != signal.SIGUSR1:
            self._kill_at = self._kill_at or now + self._grace_seconds
        has_it = shares_terminal and event.si_signo == signal.SIGINT and event.si_code == SI_KERNEL
        if not has_it:
            os.kill(program, number)

    def _hear(self, pulse: int, seconds: float) -> None:
        """Read what the program said in the last `seconds`. It is silent only between two beats."""
        said = b""
        with suppress(BlockingIOError):
            said = os.read(pulse, PULSE_BYTES)
        if said:
            self._began, self._silent_seconds = True, 0.0
            self._cause = said.decode(errors="replace").strip() or self._cause
        elif self._began:
            self._silent_seconds += seconds

    def _end_silence(self, program: int, leftovers: Leftovers) -> None:
        """Kill a program that does not beat; before that its processes write their stacks to their logs."""
        stopped = psutil.Process(program).status() == psutil.STATUS_STOPPED
        what = "was stopped by a signal" if stopped else "is blocked"
        self._cause = (
            f"the controller {what} and did not beat for {self._silent_seconds:.0f} s; the stacks of its processes are "
            "at the end of their logs"
        )
        self._silence_seconds = math.inf
        ask_for_stacks(leftovers.processes())
        os.kill(program, signal.SIGKILL)


def _become_program(
    guard: int, main: Callable[[], int], leftovers: Leftovers, mask: set[int | signal.Signals]
) -> NoReturn:
    """Run `main` and exit the process with its exit code; never return into the guard's frames."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != guard:
        os._exit(1)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # until `main` sets a handler
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.environ["TMPDIR"] = tempfile.tempdir = str(leftovers.scratch)
    code = run_to_end(main)
    if os.getppid() != guard:
        leftovers.remove()
    os._exit(code)


def run_to_end(main: Callable[[], int]) -> int:
    """Run `main` and the functions for the exit of a process, as the interpreter does, and return the exit code."""
    try:
        code = main()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except Exception:  # noqa: BLE001 - the last frame of the process: printed, and turned into its exit code
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code


def socket_folder(prefix: str, longest_parent: int = LONGEST_PARENT) -> Path:
    """Make a private folder for sockets in the temporary directory, or in `/tmp` if that path is too long."""
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent if len(parent) <= longest_parent else "/tmp"))


def become_subreaper() -> None:
    """Make processes below this one that lose their parent children of this process."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
