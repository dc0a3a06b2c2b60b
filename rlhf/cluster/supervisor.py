"""Runs a program under supervision, so that no process, shared memory or temporary folder is left when it ends.

There are three processes: the outermost (started by the shell), the middle, and the innermost, which runs the program.
Outermost and middle are subreapers: a process below them that loses its parent, a double-forked daemon included,
becomes their child. So `/proc` shows every process of the program. If one of the three dies, another one cleans up:

    innermost killed  ->  the middle sees its child end, and cleans up
    middle killed     ->  the kernel kills the innermost (parent-death signal); the outermost adopts all, and cleans up
    outermost killed  ->  the kernel signals the middle, which cleans up

It cannot clean up when outermost and middle are killed in the same instant. Linux only. Call it before any thread is
started, because a parent-death signal belongs to the thread that forked.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rlhf.cluster.cleanup import Leftovers
from rlhf.cluster.tempdir import LONGEST_SCRATCH_PARENT, socket_folder

GRACE_SECONDS = 20.0
"""Time that a program has to end after SIGTERM or Ctrl-C before it is killed."""
TICK_SECONDS = 0.5
SAME_SIGNAL_SECONDS = 1.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
SI_KERNEL = 0x80
"""`si_code` of a signal sent by the kernel, such as a terminal's Ctrl-C, which the whole foreground process group
receives."""


def supervise(main: Callable[[], int]) -> int:
    """Run `main` in a process of its own and return its exit code, or 128 + n when signal n ended it.

    SIGTERM, SIGHUP and Ctrl-C are passed to `main`, which has `GRACE_SECONDS` to end; SIGUSR1 is passed on without a
    deadline. Temporary files of `main` and of all processes below it (`TMPDIR`) go to a folder that is removed at the
    end.
    """
    scratch = socket_folder("rlhf-", LONGEST_SCRATCH_PARENT)
    outermost = Guard(scratch, role="supervisor")
    return outermost.run(lambda: Guard(scratch, role="controller", overseen=True).run(main))


class Guard:
    """Forks one child, forwards signals to it, waits for its end, and removes all that is left below this process."""

    def __init__(self, scratch: Path, role: str, overseen: bool = False) -> None:
        self._scratch, self._role, self._overseen = scratch, role, overseen
        self._parent = os.getppid()
        self._kill_at: float | None = None
        self._group_interrupted_at = -SAME_SIGNAL_SECONDS
        self._leftovers = Leftovers()

    def run(self, main: Callable[[], int]) -> int:
        """Fork, run `main` in the child, and return its exit code after cleaning up."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        sys.stdout.flush()
        sys.stderr.flush()
        guard = os.getpid()
        child = os.fork()
        if child == 0:
            _become_child(guard, main, self._scratch, mask, signal.SIGKILL if self._overseen else signal.SIGTERM)
        status = self._until_end(child)
        self._leftovers.remove()
        shutil.rmtree(self._scratch, ignore_errors=True)
        while signal.sigtimedwait(HANDLED, 0):  # signals during cleanup: it ends anyway, with its own exit code
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return self._exit_code(status)

    def _until_end(self, child: int) -> int:
        """Forward signals and reap until the child has ended. Returns its wait status."""
        while True:
            event = signal.sigtimedwait(HANDLED, TICK_SECONDS)
            if event is not None:
                self._pass_on(event, child)
            if self._must_kill():
                os.kill(child, signal.SIGKILL)
            self._leftovers.notice()
            status = _reap(child)
            if status is not None:
                return status

    def _pass_on(self, event: signal.struct_siginfo, child: int) -> None:
        # After the machine was suspended, CPython may return an event that was never filled in, with any number.
        if event.si_signo not in HANDLED or event.si_signo == signal.SIGCHLD:
            return
        if event.si_signo == signal.SIGUSR1:  # a request to `main`, which decides when to end
            os.kill(child, signal.SIGUSR1)
            return
        self._kill_at = self._kill_at or time.monotonic() + GRACE_SECONDS
        if event.si_signo != signal.SIGINT:
            os.kill(child, event.si_signo)
        elif self._interrupt_is_only_ours(event):
            os.kill(child, signal.SIGINT)

    def _interrupt_is_only_ours(self, event: signal.struct_siginfo) -> bool:
        """Whether only this process got the SIGINT. A Ctrl-C also reaches the child; `kill -INT` of the outermost does
        not."""
        if not self._overseen:
            return event.si_code != SI_KERNEL
        if event.si_pid != self._parent:
            self._group_interrupted_at = time.monotonic()
        return time.monotonic() - self._group_interrupted_at > SAME_SIGNAL_SECONDS

    def _must_kill(self) -> bool:
        orphaned = self._overseen and os.getppid() != self._parent
        return orphaned or (self._kill_at is not None and time.monotonic() > self._kill_at)

    def _exit_code(self, status: int) -> int:
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
        number = os.WTERMSIG(status)
        if not (self._overseen and os.getppid() != self._parent):
            print(f"rlhf: the {self._role} was killed by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        return 128 + number


def _become_child(
    guard: int, main: Callable[[], int], scratch: Path, mask: set[int | signal.Signals], death_signal: signal.Signals
) -> NoReturn:
    """Run `main` and exit the process with its exit code; never returns into the guard's frames."""
    _prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != guard:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    code = _code_of(main)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _code_of(main: Callable[[], int]) -> int:
    try:
        return main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001 - the last frame of the process: printed, and turned into its exit code
        traceback.print_exc()
        return 1


def _reap(child: int) -> int | None:
    """Reap every child that has ended, adopted ones too; the status of `child` if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
