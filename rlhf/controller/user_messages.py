"""Messages of a run to its user: why samples are lost, a reply now and then, and rewards without a signal."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlhf.config import flatten
from rlhf.errors import FailureBudgetSpent
from rlhf.images import shown_text
from rlhf.rollout.agent import AGENT_FAILURE
from rlhf.rollout.group import unlike_openings
from rlhf.runs.alarms import alarms
from rlhf.runs.jsonl import finite
from rlhf.runs.loggers import EpisodeRow
from rlhf.runs.lost_samples import Failure, Reason, commonest_failure, failures_of, reason_of, samples_of
from rlhf.runs.metric_catalogue import find_metric
from rlhf.runs.stored_run import MetricRow
from rlhf.types import ROUNDING, Failed, Filtered, Group, PolicyVersion, Scored, Trajectory, Unscored
from rlhf.untrusted_text import escape_controls, escape_to_line

MOST_TOLD = 20
"""Maximum number of reasons printed: their text may come from a policy, which must not flood the terminal."""
BEGINNING, END = 300, 150
"""Characters shown of a longer text, at its beginning and its end."""
LOGGED_CHARACTERS = 2000
"""Characters of a text in the table of a logger."""
ENDS_LOGGED = 4
"""Episodes of that table from either end of the rewards."""
AGENT_LOSSES = 8
"""Failed episodes of an agent without a success after which the run ends."""
ALARM_UPDATES = 64
"""Updates that are checked for alarms, so that a metric of every sixth still has a few values."""
SETTING = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)`")
"""A recipe's key in a remedy."""
EQUAL_UPDATES = 3
"""Consecutive updates without a signal after which the user sees a message."""


class BatchNotices(Protocol):
    """Sees the batch of every update with its statistics; `version` is that of the weights after it."""

    def notice(self, version: PolicyVersion, groups: Sequence[Group], statistics: Mapping[str, float]) -> None: ...


class LossNotices:
    """Reports why samples are lost, and which got the recipe's score because their scorer failed: once for every kind
    and place, since thousands may fail alike."""

    def __init__(self, tell: Callable[[str], None], logs: Path) -> None:
        self._tell, self._logs = tell, logs
        self._told: set[Reason] = set()
        self._agent_failures: list[Failure] | None = []  # None once an episode has succeeded

    def notice(self, outcome: Group | Filtered | Failed) -> None:
        """Report the new reasons among a group's losses. Raises `FailureBudgetSpent` once an agent has lost
        `AGENT_LOSSES` episodes without a success: each may take minutes, and later ones would end alike."""
        self._check_agent(outcome)
        for failure in failures_of(outcome):
            self._once("a sample was lost", failure)
        for sample in samples_of(outcome):
            if isinstance(sample.score, Scored) and sample.score.failure:
                failure = Unscored(kind=sample.score.failure, detail=sample.score.detail)
                self._once(f"a scorer failed, and the reply got {sample.score.value:g}", failure)

    def _check_agent(self, outcome: Group | Filtered | Failed) -> None:
        if self._agent_failures is None or any(sample.trainable for sample in samples_of(outcome)):
            self._agent_failures = None
            return
        self._agent_failures += (one for one in failures_of(outcome) if one.kind.startswith(AGENT_FAILURE))
        if (lost := len(self._agent_failures)) >= AGENT_LOSSES:
            often = commonest_failure(self._agent_failures)
            raise FailureBudgetSpent(f"the agent failed in all of its first {lost} episodes; most often {often}")

    def _once(self, what: str, failure: Failure) -> None:
        reason = reason_of(failure)
        if reason in self._told or len(self._told) >= MOST_TOLD:
            return
        self._told.add(reason)
        where = f" (traceback in {self._logs})" if reason.place else ""
        self._tell(f"{what}: {commonest_failure([failure])}{where}; more of this kind are only counted")


class AlarmNotices:
    """Reports a problem that the metrics show when it begins, with the setting that its remedy names first."""

    def __init__(self, tell: Callable[[str], None], settings: Mapping[str, Any]) -> None:
        self._tell, self._settings = tell, dict(flatten(settings))
        self._rows: deque[MetricRow] = deque(maxlen=ALARM_UPDATES)
        self._known: set[str] = set()

    def notice(self, version: PolicyVersion, metrics: Mapping[str, float]) -> None:
        """Report the alarms that began with this update's metrics."""
        self._rows.append({"update": version} | {name: finite(value) for name, value in metrics.items()})
        found = {alarm.metric: alarm.what for alarm in alarms(list(self._rows))}
        for metric, what in found.items():
            if metric not in self._known:
                self._tell(f"{what}{self._setting(metric)} (`rlhf explain {metric}`)")
        self._known = set(found)

    def _setting(self, metric: str) -> str:
        entry = find_metric(metric)
        named = SETTING.findall(entry.remedy) if entry else []
        return next((f": {key} is {self._settings[key]}" for key in named if self._settings.get(key) is not None), "")


class OpeningNotices:
    """Reports once a group whose episodes began with different observations."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told = tell, False

    def notice(self, version: PolicyVersion, groups: Sequence[Group], statistics: Mapping[str, float]) -> None:
        """Report the first such group."""
        if not self._told and (words := next(filter(None, map(unlike_openings, groups)), "")):
            self._told = True
            self._tell(words)


class ReplyNotices:
    """Shows one reply of updates 1, 2, 4, 8, …: a number that rises may come from replies that nobody wants."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def notice(self, version: PolicyVersion, groups: Sequence[Group], statistics: Mapping[str, float]) -> None:
        """Show the first trained reply of the batch, if it is time for one."""
        trained = [(trajectory, score) for group in groups for _, trajectory, score in group.trainable]
        if version & (version - 1) == 0 and trained:
            self._tell(shown_reply(version, *trained[0]))


class SampleEpisodes:
    """Keeps the episodes of the newest update with the lowest and the highest rewards, as rows of a table."""

    def __init__(self) -> None:
        self.rows: tuple[EpisodeRow, ...] = ()

    def notice(self, version: PolicyVersion, groups: Sequence[Group], statistics: Mapping[str, float]) -> None:
        """Replace the rows by those of this update."""
        trained = [(trajectory, score) for group in groups for _, trajectory, score in group.trainable]
        trained.sort(key=lambda one: one[1].value)
        low = trained[:ENDS_LOGGED]
        self.rows = tuple(episode_row(*one) for one in (*low, *trained[len(low) :][-ENDS_LOGGED:]))


class SignalNotices:
    """Reports once when the rewards of `EQUAL_UPDATES` consecutive updates carried no signal. With `siblings` only the
    episodes of a group are compared with one another, otherwise all of an update."""

    def __init__(self, tell: Callable[[str], None], *, siblings: bool) -> None:
        self._tell, self._siblings, self._equal = tell, siblings, 0

    def notice(self, version: PolicyVersion, groups: Sequence[Group], statistics: Mapping[str, float]) -> None:
        """Count updates without a signal."""
        one_reward = statistics["reward/std"] <= ROUNDING
        silent = one_reward or (self._siblings and statistics.get("reward/equal_groups", 1.0) == 1.0)
        self._equal = self._equal + 1 if silent else 0
        if self._equal == EQUAL_UPDATES:
            what = (
                f"every reward was {statistics['reward/mean']:g}" if one_reward else "rewards were equal in all groups"
            )
            self._tell(
                f"nothing to learn: in {EQUAL_UPDATES} updates in a row {what}; look at replies (`rlhf score` scores a "
                "file of them), then change the reward, choose other tasks, or raise sampling.temperature or "
                "trainer.group_size"
            )


def shown_reply(version: PolicyVersion, trajectory: Trajectory, score: Scored) -> str:
    """Return a reply with its question and its reward as text, shortened and without control characters; for one of
    several turns also how the conversation begins."""
    messages = trajectory.conversation or trajectory.task.messages
    replies = [place for place, message in enumerate(messages) if message.role == "assistant"]
    asked = messages[: replies[-1]] if replies else messages
    question = shown_text(asked[-1].content, asked[-1].images) if asked else ""
    first = next((shown_text(message.content, message.images) for message in asked if message.role == "user"), "")
    begins = f"  begins    {in_one_line(first)}\n" if len(replies) > 1 else ""
    return (
        f"a reply of update {version}, reward {score.value:.3f}\n{begins}"
        f"  question  {in_one_line(question)}\n"
        f"  reply     {in_one_line(trajectory.response)}"
    )


def episode_row(trajectory: Trajectory, score: Scored) -> EpisodeRow:
    """Return an episode as a row, with its texts shortened and without control characters."""
    last = trajectory.task.messages[-1:]
    question = "".join(shown_text(message.content, message.images) for message in last)
    task, asked, reply = (
        escape_controls(text[:LOGGED_CHARACTERS]) for text in (trajectory.task.id, question, trajectory.response)
    )
    return EpisodeRow(task, asked, reply, score.value, trajectory.status.value, trajectory.action_tokens)


def in_one_line(text: str) -> str:
    """Return a text in one line, with the middle of a long one left out."""
    line = escape_to_line(text)
    return line if len(line) <= BEGINNING + END else f"{line[:BEGINNING]} … {line[-END:]}"
