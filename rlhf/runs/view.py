"""What a person watches while a run goes on: a live picture on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rlhf.http.inert import inert


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateLine:
    """What is shown of one update. What does not apply is None."""

    update: int
    """Updates behind the weights, from 1."""
    updates: int
    """Budget of updates."""
    reward: float | None
    """Mean reward of the episodes trained; None when none had a number."""
    lesson: Mapping[str, float] = field(default_factory=dict)
    """Of an update that learnt from examples: what is watched, for instance the `nll` of demonstrations in nats."""
    eval_reward: float | None = None
    """Latest held-out reward, if it was evaluated at this update."""
    staleness: float = 0.0
    """Mean staleness of the tokens trained, in updates."""
    seconds: float = 0.0
    """Wall time of the update, from the last one's end."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Where they went; phases may overlap."""
    tokens_per_second: float = 0.0
    """Sampled tokens trained, per second of wall time."""
    eta_seconds: float | None = None
    learning_rate: float | None = None
    kl: float | None = None
    """Estimate of KL(behaviour, policy) after sampling, in nats a token."""
    kl_reference: float | None = None
    """Estimate of KL(policy, reference or teacher), in nats a token."""
    clip_fraction: float | None = None
    failed: int = 0
    """Groups failed so far."""
    lost: int = 0
    """Samples lost so far: without a number, or in a group that failed."""
    filtered: int = 0
    """Groups filtered so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLine:
    """What is shown of one evaluation set."""

    update: int
    """Updates behind the weights that were evaluated."""
    name: str = ""
    """Of the set; empty when there is one, without a name."""
    reward: float | None
    """None of pairs."""
    problems: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What is shown beside the reward, for instance `pass@8`."""


class View(Protocol):
    """Shows a run. `close` leaves the terminal as it was."""

    def phase(self, name: str) -> None: ...
    def update(self, line: UpdateLine) -> None: ...
    def evaluation(self, line: EvaluationLine) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


class PlainView:
    """One line an update, in columns of fixed width with a name before every number: for logs, and for grep.

    A phase is named when it first comes: those of an update would come with every line.
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
        self._stream.write(inert(text) + "\n")
        self._stream.flush()


class BothViews:
    """The same run shown in two places: to a person, and in a log."""

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
    """The update as one line of text."""
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
    """One set's evaluation as one line of text."""
    columns = [
        f"evaluation after update {line.update}",
        *([line.name] if line.name else []),
        *([] if line.reward is None else [f"reward {line.reward:.3f}"]),
        *(f"{name} {value:.3f}" for name, value in line.metrics.items()),
        f"{'pairs' if line.reward is None else 'problems'} {line.problems}",
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
    """A number in `form`, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    """`0:42`, `12:05`, `3:07:00`; a dash where there is none."""
    if seconds is None:
        return "-"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
