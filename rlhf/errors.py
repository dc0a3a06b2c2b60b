"""Failures with names. Whatever ends a run is one of these; the command line prints `str(error)` and the exit code."""

from __future__ import annotations


class RlhfError(Exception):
    """A failure the system knows. `exit_code` is what the process ends with."""

    exit_code = 1


class UserError(RlhfError):
    """Something the user can put right: the message is one line that says what to do."""

    exit_code = 2


class ConfigError(UserError):
    """A recipe or an override that cannot be used: the key, the value, and what to write instead."""


class DataError(UserError):
    """A dataset or a row that cannot be used."""


class NoReference(DataError, ValueError):
    """A task whose answer is none, so that no reply to it can be scored."""


class ModelError(UserError):
    """A model folder or name that cannot be used."""


class PlacementError(UserError):
    """The machine or the cluster cannot hold what the recipe asks for."""


class RendezvousError(UserError):
    """A rendezvous file of another run, or a damaged one."""


class NodeFailed(RlhfError):
    """A machine's part of a Ray cluster did not start, or lost its head. `host` is whose, `cause` what ended it."""

    def __init__(self, host: str, cause: str) -> None:
        super().__init__(cause)
        self.host, self.cause = host, cause


class HostError(UserError):
    """A host on which nothing can be started, and why not."""

    def __init__(self, host: str, cause: str) -> None:
        super().__init__(f"{host}: {cause}")
        self.host, self.cause = host, cause


class WorkerDied(RlhfError):
    """A worker process ended. `worker` is its role and index, `cause` what ended it."""

    def __init__(self, worker: str, cause: str) -> None:
        super().__init__(f"{worker} died: {cause}")
        self.worker, self.cause = worker, cause


class WorkerFailed(RlhfError):
    """A worker answered a call with an exception; `detail` is its last line, `remote_traceback` the rest."""

    def __init__(self, worker: str, method: str, detail: str, remote_traceback: str = "") -> None:
        super().__init__(f"{worker}.{method} failed: {detail}")
        self.worker, self.method, self.detail, self.remote_traceback = worker, method, detail, remote_traceback


class DeadlinePassed(RlhfError):
    """Something was awaited for longer than its deadline."""

    def __init__(self, awaited: str, seconds: float) -> None:
        super().__init__(f"{awaited} did not answer within {seconds:g} s")
        self.awaited, self.seconds = awaited, seconds


class TransferError(RlhfError):
    """Weights did not travel: a member of the transfer group is silent, gone, or disagrees about what is sent."""


class WeightSyncError(RlhfError):
    """A weight sync that did not complete, or that was not proved. No engine serves after it."""

    def __init__(self, engine: str, phase: str, version: int, cause: str) -> None:
        super().__init__(f"weight sync of version {version} to {engine} failed in phase {phase!r}: {cause}")
        self.engine, self.phase, self.version, self.cause = engine, phase, version, cause


class FailureBudgetSpent(RlhfError):
    """More groups failed than the recipe tolerates."""


class EngineBroken(RlhfError):
    """An engine that must not answer any more: a step or a phase of a publish failed, and its state is not known."""

    def __init__(self, engine: str, cause: str) -> None:
        super().__init__(f"{engine} is broken and serves no more: {cause}")
        self.engine, self.cause = engine, cause


class GenerateFailed(RlhfError):
    """An engine could not answer one request; others are not touched."""

    def __init__(self, engine: str, session: str, detail: str) -> None:
        super().__init__(f"{engine} could not answer session {session}: {detail}")
        self.engine, self.session, self.detail = engine, session, detail


class PolicyMismatch(RlhfError):
    """Learner and engine give the same tokens of the same weights other log-probs: nothing was trained on them."""


class TrainingDiverged(RlhfError):
    """Numbers of the training stopped being numbers."""


class NotFinite(TrainingDiverged):
    """A reward, advantage or loss that is no number: nothing is trained on it."""


class CheckpointError(UserError):
    """A checkpoint that is half written, damaged, or made for another plan."""


class RunTaken(UserError):
    """A run folder that belongs to another process: it is refused at the start, and left alone once it is lost."""


class SaveFailed(RlhfError):
    """A checkpoint that could not be written, and which one is whole."""


class DiskFailed(RlhfError):
    """A file of the run that could not be written, and what is intact."""


class EnvironmentFailed(RlhfError):
    """An environment broke: the episode is lost, and has no reward. `kind` is one word for counting: `raised`,
    `timeout`, `lost` (its session or its server is gone), `refused` (no place, or not allowed), `protocol` (an answer
    that makes no sense)."""

    def __init__(self, environment: str, kind: str, detail: str) -> None:
        super().__init__(f"environment {environment}: {kind}: {detail}")
        self.environment, self.kind, self.detail = environment, kind, detail


class HttpFailed(RlhfError):
    """A server that was asked over HTTP gave no answer. `kind` is one word for counting: `refused` (no connection),
    `busy` (it has no place), `timeout`, `lost` (the connection broke), `server` (its error), `rejected` (our request),
    `denied` (our token), `protocol` (an answer that makes no sense), `open` (it is not asked for a while)."""

    def __init__(self, where: str, kind: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(f"{where}: {kind}: {detail}")
        self.where, self.kind, self.detail = where, kind, detail
        self.retry_after_seconds = retry_after_seconds


class RecordingError(UserError):
    """A recording that cannot be used, or that has no answer to what is asked."""


class OpponentFailed(RlhfError):
    """An opponent left a game without a result: the episode has no reward. `kind` is one of those of `HttpFailed` where
    it gave no reply, `illegal` where its replies ended the game before anyone else could act."""

    def __init__(self, opponent: str, kind: str, detail: str) -> None:
        super().__init__(f"opponent {opponent}: {kind}: {detail}")
        self.opponent, self.kind, self.detail = opponent, kind, detail


class CallbackFailed(RlhfError):
    """A callback of the recipe's own raised."""
