"""The process that stands over one run: starts the code in its cage, watches it, ends all of it, and reports.

It is not in the cage itself, and the code cannot reach it: it has another user id, or is the first process of its
namespace, or is outside the code's Landlock domain, and it lets nobody read its memory. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from types import FrameType

from rlhf.sandbox.confine import confine
from rlhf.sandbox.descendants import Survivors, descendants, end_all, memory_bytes, reaped, threads, unlinked_bytes
from rlhf.sandbox.folder import Inside, fetch_files, used, write_files
from rlhf.sandbox.orders import Cage, Orders, Verdict, unpack
from rlhf.sandbox.streams import Streams

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
LOOK_SECONDS = 0.04
"""How often the run's size is measured: what it can exceed its limits by is what it does in that time."""
CANNOT_START = 126
MIB = 1024 * 1024


def main() -> None:
    """Read orders, carry them out, write a verdict. Exit code 3 and a line on standard error: no fault of the code."""
    orders = unpack(sys.stdin.buffer.read())
    _prepare(orders)
    try:
        verdict = carry_out(orders)
    except Ended:
        _remove(orders.cage.folder)  # whoever would have done it is gone
        raise
    except (OSError, Survivors) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}")
        raise SystemExit(3) from None
    sys.stdout.buffer.write(verdict.pack())


def carry_out(orders: Orders) -> Verdict:
    """One run from files in to files out; nothing of it is left when this returns, or raises."""
    try:
        try:
            write_files(orders.files, orders.cage, orders.limits)
        except Inside as error:
            return _verdict("refused", None, f"files cannot be written: {error}", 0.0, {}, (b"", b""))
        return _run(orders)
    finally:
        end_all(orders.cage)


def _run(orders: Orders) -> Verdict:
    streams = Streams(orders.stdin, orders.limits.output_bytes)
    started = time.monotonic()
    child = _start(orders, streams)
    ending, code, detail = _watch(child, streams, orders, started + orders.limits.wall_seconds)
    seconds = time.monotonic() - started
    end_all(orders.cage)
    output = streams.finish()
    try:
        files = fetch_files(orders.fetch, orders.cage, orders.limits)
    except Inside as error:
        files, detail = {}, f"{detail}; no files: {error}".lstrip("; ")
    return _verdict(ending, code, detail, seconds, files, output)


def _start(orders: Orders, streams: Streams) -> int:
    if (child := os.fork()) == 0:
        try:
            streams.become_standard()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            confine(orders.cage, orders.limits)
            os.setsid()
            os.execve(orders.command[0], orders.command, dict(orders.environment))
        except OSError as error:
            os.write(2, f"the sandbox could not start the code: {error}\n".encode())
        finally:
            os._exit(CANNOT_START)
    streams.let_go()
    return child


def _watch(child: int, streams: Streams, orders: Orders, deadline: float) -> tuple[str, int | None, str]:
    """Until the code ends, its time is over or it has grown too large: how that was, its return code, and of what."""
    over, looked = os.pidfd_open(child), time.monotonic()
    try:
        while True:
            streams.pump(min(LOOK_SECONDS, max(deadline - time.monotonic(), 0.0)), over)
            status = dict(reaped()).get(child)
            if status is not None:
                return "exited", os.waitstatus_to_exitcode(status), ""
            if time.monotonic() >= deadline:
                return "time", None, f"killed after {orders.limits.wall_seconds:g} s"
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                if excess := _excess(orders):
                    return "excess", None, f"killed for using more than {excess}"
    finally:
        os.close(over)


def _excess(orders: Orders) -> str:
    """The limit that the run passes, in words; empty when there is none."""
    limits, running = orders.limits, descendants()
    if memory_bytes(running, limits.memory_bytes) > limits.memory_bytes:
        return f"{limits.memory_bytes // MIB} MiB of memory"
    if threads(running) > limits.processes:
        return f"{limits.processes} processes"
    stored, entries = used(orders.cage.folder, limits.files)
    if entries > limits.files:
        return f"{limits.files} files"
    if stored + unlinked_bytes(running) > limits.disk_bytes:
        return f"{limits.disk_bytes // MIB} MiB of disk"
    return ""


def _verdict(
    ending: str, code: int | None, detail: str, seconds: float, files: dict[str, bytes], output: tuple[bytes, bytes]
) -> Verdict:
    stdout, stderr = output
    return Verdict(
        ending=ending, return_code=code, stdout=stdout, stderr=stderr, seconds=seconds, detail=detail, files=files
    )


def _prepare(orders: Orders) -> None:
    """Orphans come to this process, nobody may look into it, and it ends the run when its parent dies."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # In a namespace the code could send it; the kernel ends the warden there with what started it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if orders.cage.alone else _end)
    if not orders.cage.alone:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != orders.parent:  # it died before the kernel knew
            raise SystemExit(1)
    _hand_over(orders.cage)


def _hand_over(cage: Cage) -> None:
    if cage.second_uid is not None:
        os.chmod(cage.folder, 0o700)  # it is the first user's
    if cage.uid is not None:
        os.chown(cage.folder, cage.uid, cage.uid)


def _remove(folder: str) -> None:
    import shutil  # rarely needed, and slow to import

    shutil.rmtree(folder, ignore_errors=True)


class Ended(SystemExit):
    """This process was told to end."""


def _end(signum: int, frame: FrameType | None) -> None:
    raise Ended(128 + signum)
