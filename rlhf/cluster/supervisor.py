"""Run a program under a guard, so that no process, shared memory or temporary folder is left when it ends.

The guard is the process that the shell started; it forks the program. It is a subreaper: a process below it that loses
its parent, a double-forked daemon included, becomes its child, so it finds every process of the program.

    program killed  ->  the guard sees its child end, and cleans up
    guard killed    ->  the kernel sends SIGTERM to the program, which ends in order and cleans up itself

Nothing cleans up when both are killed at the same moment. Linux only. Call `supervise` before any thread is started,
because a parent-death signal belongs to the thread that forked.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import NoReturn

from rlhf.cluster.leftovers import Leftovers, reap_all

LONGEST_PARENT = 28
"""Longest parent path of a folder for Ray's sockets: a socket's path has at most 107 bytes, and Ray's names take 76."""
LONGEST_SCRATCH_PARENT = LONGEST_PARENT - len("/rlhf-12345678")
ECHO_SECONDS = 0.5
"""One Ctrl-C may arrive several times within this time: from a process group's sender, and passed on by the guard."""
GRACE_SECONDS = 20.0
"""Time that a program has to end after SIGTERM or Ctrl-C before it is killed."""
TICK_SECONDS = 0.5
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
SI_KERNEL = 0x80
"""`si_code` of a signal sent by the kernel, such as a terminal's Ctrl-C."""


def supervise(main: Callable[[], int], *, saves_at_ctrl_c: bool = False, grace_seconds: float = 0.0) -> int:
    """Run `main` in its own process and return its exit code, or 128 + n when signal n ended it.

    SIGTERM, SIGHUP and Ctrl-C are passed to `main`, which has `GRACE_SECONDS` to end, and `grace_seconds` more; SIGUSR1
    is passed on without a deadline, and so is the first Ctrl-C if `main` then saves (`saves_at_ctrl_c`). Temporary
    files of `main` and of all processes below it (`TMPDIR`) go to a folder that is removed at the end. Unless a
    terminal is attached, `main` leads a process group, so that each signal reaches it once.
    """
    leftovers = Leftovers(socket_folder("rlhf-", LONGEST_SCRATCH_PARENT))
    become_subreaper()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    sys.stdout.flush()
    sys.stderr.flush()
    guard, interactive = os.getpid(), os.isatty(0)
    program = os.fork()
    if program == 0:
        if not interactive:
            os.setpgid(0, 0)
        _become_program(guard, main, leftovers, mask)
    status = _wait_for(program, grace_seconds, shares_terminal=interactive, saves_at_ctrl_c=saves_at_ctrl_c)
    leftovers.remove()
    while signal.sigtimedwait(HANDLED, 0):  # signals during cleanup: it ends anyway, with its own exit code
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    print(f"rlhf: the controller was killed by {signal.Signals(number).name}", file=sys.stderr, flush=True)
    return 128 + number


def _wait_for(program: int, grace_seconds: float, *, shares_terminal: bool, saves_at_ctrl_c: bool) -> int:
    """Pass signals on to the program and reap until it has ended. Return its wait status."""
    kill_at: float | None = None
    patient_until = math.inf if saves_at_ctrl_c else -math.inf
    while True:
        event = signal.sigtimedwait(HANDLED, TICK_SECONDS)
        # After the machine was suspended, CPython may return an event that was never filled in, with any number.
        if event is not None and event.si_signo in HANDLED and event.si_signo != signal.SIGCHLD:
            now = time.monotonic()
            if event.si_signo == signal.SIGINT and now < patient_until:
                patient_until = min(patient_until, now + ECHO_SECONDS)
            elif event.si_signo != signal.SIGUSR1:
                kill_at = kill_at or now + GRACE_SECONDS + grace_seconds
            has_it = shares_terminal and event.si_signo == signal.SIGINT and event.si_code == SI_KERNEL
            if not has_it:
                os.kill(program, event.si_signo)
        if kill_at is not None and time.monotonic() > kill_at:
            os.kill(program, signal.SIGKILL)
        ended = reap_all()
        if program in ended:
            return ended[program]


def _become_program(
    guard: int, main: Callable[[], int], leftovers: Leftovers, mask: set[int | signal.Signals]
) -> NoReturn:
    """Run `main` and exit the process with its exit code; never return into the guard's frames."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != guard:
        os._exit(1)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # until `main` sets a handler
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
