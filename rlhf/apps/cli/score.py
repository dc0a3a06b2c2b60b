"""`rlhf score` scores recorded responses with the recipe's reward."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rlhf.apps.checks.gold import GoldTotals, gold_reply
from rlhf.apps.checks.named_reward import check_needs_no_game
from rlhf.data.columns import Row, column_value
from rlhf.data.files import json_lines
from rlhf.data.rows import answer_of, messages_of
from rlhf.errors import ConfigError, DataError
from rlhf.http.outages import Outages
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.schema import Recipe
from rlhf.reward.reward import make_reward
from rlhf.reward.reward_interface import LiveReward, score_reply
from rlhf.runs.lost_samples import FailureCounts
from rlhf.types import Scored, Task, Unscored
from rlhf.untrusted_text import escape_json

AHEAD_PER_WORKER = 8
"""Responses in flight per worker: enough to keep it busy, few enough to stream files of any size."""


@dataclass(slots=True)
class ScoreTotals:
    """Totals of the rows scored so far."""

    rows: int = 0
    errors: int = 0
    total: float = 0.0
    parts: Counter[str] = field(default_factory=Counter)
    failures: FailureCounts = field(default_factory=FailureCounts)
    golds: GoldTotals = field(default_factory=GoldTotals)

    def add(self, score: Scored | Unscored) -> None:
        """Count one row's score."""
        self.rows += 1
        if isinstance(score, Scored):
            self.total += score.value
            self.parts.update(score.parts)
        else:
            self.errors += 1
            self.failures.add(score)

    def summary(self, seconds: float) -> str:
        """Return the totals in one line."""
        scored = self.rows - self.errors
        mean = f"mean reward {self.total / scored:.4f}" if scored else "no reward"
        if len(self.parts) > 1:
            mean += f" ({', '.join(f'{name} {total / scored:.4f}' for name, total in self.parts.items())})"
        often = f" (most often {self.failures.commonest})" if self.errors else ""
        return f"{self.rows} rows: {mean}, {self.errors} errors{often}, {self.rows / seconds:.0f} rows/s"


def run_score(
    recipe: Path, rows: Path, overrides: Sequence[str] = (), output: Path | None = None, gold: bool = False
) -> int:
    """Score each row of a JSONL file and write it with `reward` or `error` added, in order; returns the exit code.

    A row has the dataset's columns and `response`. All rows are checked before the first one is scored; raises
    `DataError` naming a row that cannot be used. The summary goes to stderr. A response whose scorer failed gets an
    `error`, never a reward. With `gold` the rows need no `response`: their reference answers are scored against
    themselves, and those that have no reward, or not 1, are counted.
    """
    settings = load_recipe(recipe, overrides).recipe
    check_needs_no_game(settings.reward)
    remotes = [scorer.remote for scorer in settings.reward.scorers.values() if scorer.remote]
    if settings.reward.model_scorer or any(remote.sends == "tokens" for remote in remotes):
        raise ConfigError("this reward scores the tokens that an engine sampled, not texts; use rlhf eval")
    if gold and not settings.reward.needs_answer:
        raise ConfigError(f"reward.kind: {settings.reward.kind} uses no reference answer; leave out --gold")
    for _ in _recorded(rows, settings, gold):
        pass
    started = time.monotonic()
    with _writer(output, rows) as target:
        totals = asyncio.run(_score_all(settings, rows, target, gold))
    print(totals.summary(time.monotonic() - started), file=sys.stderr)
    if gold:
        print(f"gold answers: {totals.golds.summary()}", file=sys.stderr)
    return 0


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    """One row of the input."""

    row: Row
    task: Task
    response: str


async def _score_all(settings: Recipe, rows: Path, target: TextIO, gold: bool) -> ScoreTotals:
    outages = Outages(seconds=60 * settings.reward.patience_minutes, tell=partial(print, file=sys.stderr, flush=True))
    totals, reward = ScoreTotals(), make_reward(settings.reward, outages=outages)
    ahead = AHEAD_PER_WORKER * settings.reward.workers
    try:
        await reward.start()
        async for recorded, outcome in _scored(reward, _recorded(rows, settings, gold), ahead):
            totals.add(outcome)
            if gold:
                totals.golds.add(recorded.task.answer or "", outcome)
            target.write(escape_json(json.dumps(scored_row(recorded.row, outcome), ensure_ascii=False)) + "\n")
    finally:
        await reward.close()
    return totals


async def _scored(
    reward: LiveReward, records: Iterator[RecordedResponse], ahead: int
) -> AsyncIterator[tuple[RecordedResponse, Scored | Unscored]]:
    """Iterate over every record with its score, in order; `ahead` records are scored concurrently."""
    waiting: deque[tuple[RecordedResponse, asyncio.Task[Scored | Unscored]]] = deque()
    for recorded in records:
        score = score_reply(reward, recorded.task, recorded.response)
        waiting.append((recorded, asyncio.create_task(score)))
        if len(waiting) >= ahead:
            first, outcome = waiting.popleft()
            yield first, await outcome
    for recorded, outcome in waiting:
        yield recorded, await outcome


def _recorded(path: Path, settings: Recipe, gold: bool) -> Iterator[RecordedResponse]:
    """Iterate over the rows, each with the parts of a task that the reward needs. Raises `DataError`."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a JSONL file with the dataset's columns and 'response'")
    columns = next(iter(settings.data.train_sets.values()), None)
    if columns is None:
        raise ConfigError("rlhf score reads the columns that data.train names, but this recipe has no data.train")
    reward = settings.reward
    called = any(scorer.kind == "function" for scorer in reward.scorers.values())  # what it asks for is not known here
    for where, row in json_lines(path):
        if not (gold or isinstance(row.get("response"), str)):
            raise DataError(f"{where} has no text 'response'; every row needs the response to score")
        answered = called and columns.answer_column and column_value(row, columns.answer_column) is not None
        asked = called and (columns.template or column_value(row, columns.prompt_column) is not None)
        answer = answer_of(columns, row, where) if answered or reward.needs_answer or reward.needs_prompt else None
        messages = messages_of(columns, row, where) if asked or reward.needs_prompt else ()
        task = Task(id=where, messages=messages, answer=answer, row=row)
        yield RecordedResponse(row, task, gold_reply(reward, answer or "") if gold else row["response"])


def scored_row(row: Row, outcome: Scored | Unscored) -> dict[str, Any]:
    """Return the row with `reward`, and `reward_parts` where there are several, or with `error`, without those of an
    earlier scoring."""
    unscored = {key: value for key, value in row.items() if key not in ("reward", "reward_parts", "error")}
    if isinstance(outcome, Scored):
        parts = {"reward_parts": dict(outcome.parts)} if len(outcome.parts) > 1 else {}
        return unscored | {"reward": outcome.value} | parts
    return unscored | {"error": f"{outcome.kind}: {outcome.detail}"}


def _writer(output: Path | None, rows: Path) -> AbstractContextManager[TextIO]:
    if output is None:
        return nullcontext(sys.stdout)
    if output.exists() and output.samefile(rows):
        raise DataError(f"{output} is the file to score; give another output file")
    if not output.parent.is_dir():
        raise DataError(f"{output}: there is no folder {output.parent}; make it first")
    return output.open("w", encoding="utf-8")
