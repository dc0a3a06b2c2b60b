"""Progress display of a run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rlhf.untrusted_text import escape_controls


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateLine:
    """The values of one update; None if a value does not apply."""

    update: int
    """Version of the weights, from 1."""
    updates: int
    """Total number of updates."""
    reward: float | None
    """Mean reward of the trained episodes; None without a score."""
    lesson: Mapping[str, float] = field(default_factory=dict)
    """For an update on examples: the metrics to watch, for instance the `sft/nll` of demonstrations in nats."""
    eval_reward: float | None = None
    """Latest held-out reward, if this update was evaluated."""
    staleness: float = 0.0
    """Mean staleness of the trained tokens, in updates."""
    seconds: float = 0.0
    """Wall time of the update, from the end of the previous one."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """These seconds by phase; phases may overlap."""
    tokens_per_second: float = 0.0
    """Trained sampled tokens, per second of wall time."""
    eta_seconds: float | None = None
    learning_rate: float | None = None
    kl: float | None = None
    """Estimate of KL(behaviour, policy) after sampling, in nats per token."""
    kl_reference: float | None = None
    """Estimate of KL(policy, reference or teacher), in nats per token."""
    clip_fraction: float | None = None
    failed: int = 0
    """Number of groups failed so far."""
    lost: int = 0
    """Number of samples lost so far: without a score, or in a group that failed."""
    filtered: int = 0
    """Number of groups filtered so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLine:
    """The values of one evaluation set."""

    update: int
    """Version of the evaluated weights."""
    name: str = ""
    """Name of the set; empty for a single, unnamed set."""
    reward: float | None
    """None for preference pairs."""
    problems: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics other than the reward, for instance `pass@8`."""


class View(Protocol):
    """Shows a run. `close` restores the terminal."""

    def phase(self, name: str) -> None: ...
    def update(self, line: UpdateLine) -> None: ...
    def evaluation(self, line: EvaluationLine) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


class PlainView:
    """Prints one line per update, for logs and grep: columns of fixed width with a name before every number.

    It names a phase only at its first occurrence.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phases_named: set[str] = set()

    def phase(self, name: str) -> None:
        if name not in self._phases_named:
            self._phases_named.add(name)
            self._say(f"… {name}")

    def update(self, line: UpdateLine) -> None:
        self._say(plain_line(line))

    def evaluation(self, line: EvaluationLine) -> None:
        self._say(format_evaluation(line))

    def message(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        self._stream.flush()

    def _say(self, text: str) -> None:
        self._stream.write(escape_controls(text) + "\n")
        self._stream.flush()


class BothViews:
    """Shows the same run in two views: on a terminal, and in a log."""

    def __init__(self, one: View, other: View) -> None:
        self._views = (one, other)

    def phase(self, name: str) -> None:
        for view in self._views:
            view.phase(name)

    def update(self, line: UpdateLine) -> None:
        for view in self._views:
            view.update(line)

    def evaluation(self, line: EvaluationLine) -> None:
        for view in self._views:
            view.evaluation(line)

    def message(self, text: str) -> None:
        for view in self._views:
            view.message(text)

    def close(self) -> None:
        for view in self._views:
            view.close()


def plain_line(line: UpdateLine) -> str:
    """Return the update as one line of text."""
    width = len(str(line.updates))
    phases = " ".join(f"{name} {seconds:.2f}" for name, seconds in line.phase_seconds.items())
    learnt = _studied(line) if line.lesson else _reinforced(line)
    columns = [
        f"update {line.update:>{width}}/{line.updates}",
        *learnt,
        f"eta {duration(line.eta_seconds):>5}",
        f"seconds {line.seconds:.2f}" + (f" ({phases})" if phases else ""),
    ]
    return "  ".join(columns)


def format_evaluation(line: EvaluationLine) -> str:
    """Return one set's evaluation as one line of text."""
    columns = [
        f"evaluation after update {line.update}",
        *([line.name] if line.name else []),
        *([] if line.reward is None else [f"reward {line.reward:.3f}"]),
        *(f"{name} {value:.3f}" for name, value in line.metrics.items()),
        *([] if line.problems is None else [f"{'pairs' if line.reward is None else 'problems'} {line.problems}"]),
    ]
    return "  ".join(columns)


def _studied(line: UpdateLine) -> list[str]:
    return [
        *(f"{name} {format_number(value, '.3f'):>6}" for name, value in line.lesson.items()),
        f"tokens/s {line.tokens_per_second:>7.0f}",
        f"lr {format_number(line.learning_rate, '.1e')}",
    ]


def _reinforced(line: UpdateLine) -> list[str]:
    return [
        f"reward {format_number(line.reward, '.3f'):>6}",
        f"eval {format_number(line.eval_reward, '.3f'):>5}",
        f"staleness {line.staleness:.2f}",
        f"tokens/s {line.tokens_per_second:>7.0f}",
        f"lr {format_number(line.learning_rate, '.1e')}",
        f"kl {format_number(line.kl, '.1e'):>7}",
        *([] if line.kl_reference is None else [f"kl to reference {line.kl_reference:.3f}"]),
        f"clip {format_number(line.clip_fraction, '.3f'):>5}",
        f"failed {line.failed}",
        f"lost {line.lost}",
        f"filtered {line.filtered}",
    ]


def format_number(value: float | None, form: str) -> str:
    """Return a number in `form`, or a dash for None."""
    return "-" if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    """Format seconds as `0:42`, `12:05`, `3:07:00`, or a dash for None."""
    if seconds is None:
        return "-"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
