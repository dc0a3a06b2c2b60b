"""Named failures. Every error that ends a run is one of these; the command line prints `str(error)` and exits with its
code. `catch` and `catch_awaiting` run third-party code and return its outcome as data; `logged_error` reports its
exceptions: one line that names the place in that code, and the traceback in the log, once.

Only two other places catch broadly: `rlhf/reward/code/`, which runs in a sandbox without this package, and the last
frame of a process or of a run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

T = TypeVar("T")
LOG = logging.getLogger("rlhf.errors")
"""Writes to standard error, the log of a worker or scorer; the controller writes it to its own log."""
LONGEST = 500
"""Characters of an exception's type and message."""
PLACE = re.compile(r" \(at ([^()\n]+:\d+)\)$")
OURS = str(Path(__file__).parent) + os.sep
LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_logged: set[str] = set()
ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]
LEAKS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What third-party code may raise and mean only itself. `KeyboardInterrupt` in the main thread is the user's Ctrl-C."""


class RlhfError(Exception):
    """Base class of all known failures. `exit_code` is the exit code of the process; `mended_by_restart` is whether a
    new start of the run from its last checkpoint may succeed."""

    exit_code = 1
    mended_by_restart = False


class UserError(RlhfError):
    """An error that the user can fix: the message is one line that says what to do."""

    exit_code = 2


class ConfigError(UserError):
    """An invalid recipe or override: the key, the value, and what to write instead."""


class DataError(UserError):
    """An unusable dataset or row."""


class NoReference(DataError, ValueError):
    """The reference answer of a task is invalid, so that no reply to it can be scored."""


class ModelError(UserError):
    """An unusable model folder or name."""


class PlacementError(UserError):
    """The machine or the cluster has too few resources for the recipe."""


class RendezvousError(UserError):
    """A rendezvous file that belongs to another run, or is damaged."""


class NodeFailed(RlhfError):
    """A node of a Ray cluster did not start, or lost its head node."""


class WorkerDied(RlhfError):
    """A worker process ended. `worker` is its role and index, `cause` what ended it."""

    mended_by_restart = True

    def __init__(self, worker: str, cause: str) -> None:
        super().__init__(f"{worker} died: {cause}")
        self.worker, self.cause = worker, cause


class WorkerFailed(RlhfError):
    """A call to a worker raised an exception; `detail` is the last line of its traceback, `remote_traceback`
    the rest."""

    mended_by_restart = True

    def __init__(self, worker: str, method: str, detail: str, remote_traceback: str = "") -> None:
        super().__init__(f"{worker}.{method} failed: {detail}")
        self.worker, self.method, self.detail, self.remote_traceback = worker, method, detail, remote_traceback


class DeadlinePassed(RlhfError):
    """A wait exceeded its deadline."""

    mended_by_restart = True

    def __init__(self, awaited: str, seconds: float) -> None:
        super().__init__(f"{awaited} did not answer within {seconds:g} s")
        self.awaited, self.seconds = awaited, seconds


class RanksHang(DeadlinePassed):
    """Learner ranks did not finish together. `places` has each rank's activity, or None if it does not answer because
    it is stopped or its node is gone."""

    def __init__(self, awaited: str, seconds: float, places: Mapping[str, str | None]) -> None:
        super().__init__(awaited, seconds)
        self.places = places
        silent = [f"{rank} does not answer (stopped, or its node is gone)" for rank, at in places.items() if at is None]
        self.args = (f"{self}: {', '.join([*silent, *(f'{rank} {at}' for rank, at in places.items() if at)])}",)


class TransferError(RlhfError):
    """A weight transfer failed: a member of the transfer group does not respond, has died, or expects other tensors."""

    mended_by_restart = True


class WeightSyncError(RlhfError):
    """A weight sync failed, or its verification did. No engine samples after it. `lost` are the engines without which
    it can be tried again."""

    mended_by_restart = True

    def __init__(self, engine: str, phase: str, version: int, cause: str, lost: Sequence[str] = ()) -> None:
        super().__init__(f"weight sync of version {version} to {engine} failed in phase {phase!r}: {cause}")
        self.engine, self.phase, self.version, self.cause, self.lost = engine, phase, version, cause, tuple(lost)


class FailureBudgetSpent(RlhfError):
    """More groups failed than the recipe tolerates."""


class EngineBroken(RlhfError):
    """An engine that must not be used any more: a step or a phase of a weight sync failed, and its state is unknown."""

    mended_by_restart = True

    def __init__(self, engine: str, cause: str) -> None:
        super().__init__(f"{engine} is in an unknown state and was taken out of service: {cause}")
        self.cause = cause


class EnginesLost(RlhfError):
    """Fewer engines are left than the run needs, and no other can be started."""

    mended_by_restart = True


class GenerateFailed(RlhfError):
    """An engine could not answer one request; other requests are not affected."""

    def __init__(self, engine: str, session: str, detail: str) -> None:
        super().__init__(f"{engine} could not answer session {session}: {detail}")


class PolicyMismatch(RlhfError):
    """Learner and engine disagree on log-probs of the same tokens with the same weights: nothing was trained on
    them."""


class TrainingDiverged(RlhfError):
    """NaN or infinity in the numbers of training."""


class NotFinite(TrainingDiverged):
    """A reward, advantage or loss is NaN or infinite: nothing is trained on it."""


class CheckpointError(UserError):
    """A checkpoint that is incomplete, damaged, or made for another plan."""


class TrialFailed(RlhfError):
    """The run of a trial did not finish."""


class RunTaken(UserError):
    """The run folder belongs to another process: refused at the start, and no longer written to once ownership
    is lost."""


class SaveFailed(RlhfError):
    """A checkpoint could not be written; the message names the last complete one."""


class DiskFailed(RlhfError):
    """A file of the run could not be written; the message says what is intact."""


class EnvironmentFailed(RlhfError):
    """An environment failed: the episode is lost, and has no reward. `kind` is one word for counting: `raised`,
    `timeout`, `lost` (its session or its server is gone), `refused` (no capacity, or not allowed), `protocol` (an
    invalid answer)."""

    def __init__(self, environment: str, kind: str, detail: str) -> None:
        super().__init__(f"environment {environment}: {kind}: {detail}")
        self.environment, self.kind, self.detail = environment, kind, detail


class HttpFailed(RlhfError):
    """An HTTP server gave no usable answer. `kind` is one word for counting: `refused` (no connection), `busy` (no
    capacity), `timeout`, `lost` (the connection broke), `server` (its error), `outage` (it answered nobody for
    as long as was waited), `rejected` (our request), `denied` (our token), `protocol` (an invalid answer)."""

    def __init__(self, where: str, kind: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(f"{where}: {kind}: {detail}")
        self.where, self.kind, self.detail = where, kind, detail
        self.retry_after_seconds = retry_after_seconds


class SandboxUnavailable(UserError):
    """No isolation level of the sandbox works on this machine."""


class SandboxBroken(RlhfError):
    """The sandbox failed to run a program, and the program is not the cause."""


class SandboxBusy(RlhfError):
    """The sandbox had no free slot within the deadline, or too many programs were waiting."""


class RecordingError(UserError):
    """A recording that cannot be used, or that has no answer for a request."""


class OpponentFailed(RlhfError):
    """An opponent left a game without a result: the episode has no reward. `kind` is one of those of `HttpFailed` where
    it gave no reply, `illegal` where its replies ended the game before any other player could act."""

    def __init__(self, opponent: str, kind: str, detail: str) -> None:
        super().__init__(f"opponent {opponent}: {kind}: {detail}")
        self.opponent, self.kind, self.detail = opponent, kind, detail


class CallbackFailed(RlhfError):
    """A user-defined callback raised an exception."""


class PieceFailed(RlhfError):
    """A user-defined loss, estimator or kind of run raised an exception, or user code ended a task of the run."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The call ended with this exception."""

    error: BaseException


def catch(work: Callable[[], T], *, also: ExceptionTypes = ()) -> T | Raised:
    """Return the value of `work`, or `Raised` for any of `LEAKS`, or of `also`: `BaseException` where a thread must
    report every end of its work."""
    leaks = LEAKS if threading.current_thread() is threading.main_thread() else (*LEAKS, KeyboardInterrupt)
    try:
        return work()
    except leaks as error:  # third-party code: any exception becomes data, only in this file
        return Raised(error)
    except also as error:
        return Raised(error)


async def catch_awaiting(work: Awaitable[T]) -> T | Raised:
    """Return the value of an awaitable, or `Raised` for whatever it raises: an event loop turns Ctrl-C into a
    cancellation. A cancellation of the caller propagates; one that leaks from `work` is data."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await work
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling() > before:
            raise
        return Raised(error)


async def naming_leaks(work: Awaitable[T], what: str) -> T:
    """Return or raise what `work` does. What ends a task or a process and leaked from user code becomes a `PieceFailed`
    about `what`: nobody waits for a task that ends as if it were cancelled."""
    done = await catch_awaiting(work)
    if not isinstance(done, Raised):
        return done
    if isinstance(done.error, (Exception, KeyboardInterrupt)):
        raise done.error
    raise PieceFailed(f"user code ended {what}: {logged_error(done.error)}") from done.error


def describe_error(error: BaseException) -> str:
    """Return an exception in one line that ends with its place: `KeyError: 'answer' (at my_reward.py:7)`.

    The place is the innermost line outside the standard library and installed packages, else that of an installed
    package. An exception that only this package raised has none.
    """
    said = catch(lambda: str(error))  # its text may be user code, which raises too
    words = f"its text cannot be made ({type(said.error).__name__})" if isinstance(said, Raised) else said
    text = " ".join(f"{type(error).__name__}: {words}".split())[:LONGEST]
    lines = list(_foreign_lines(error))
    own = [line for line in lines if not line.startswith(LIBRARIES)]
    return f"{text} (at {(own or lines)[-1].removeprefix(os.getcwd() + os.sep)})" if lines else text


def place_of(text: str) -> str:
    """Return the place at the end of a text that `describe_error` ended; empty without one."""
    found = PLACE.search(text)
    return found[1] if found else ""


def traceback_of(error: BaseException) -> str:
    """Return the whole traceback of an exception."""
    return "".join(traceback.format_exception(error))


def logged_error(error: BaseException) -> str:
    """Describe an exception in one line, and log its traceback."""
    line = describe_error(error)
    log_traceback(line, traceback_of(error))
    return line


def log_traceback(described: str, text: str) -> None:
    """Log the traceback of a described exception, the first time that one comes from its place."""
    key = place_of(described) or described.partition(":")[0]
    if key not in _logged:
        _logged.add(key)
        LOG.error("%s\n%s", described, text)


@contextmanager
def logged_in(stream: TextIO) -> Iterator[None]:
    """Write tracebacks of this process to a stream instead of standard error."""
    handler = logging.StreamHandler(stream)
    LOG.addHandler(handler)
    LOG.propagate = False
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.propagate = True


def _foreign_lines(error: BaseException) -> Iterator[str]:
    """Iterate over the lines of foreign code that led to the exception, outermost first, as `file:line`."""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        inside = file.startswith((OURS, "<frozen ")) or (file.startswith(STANDARD) and not file.startswith(LIBRARIES))
        if not inside:
            yield f"{file}:{number}"
