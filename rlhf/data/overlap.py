"""Problems that are trained on and evaluated with: counted before anything starts, and refused where a set has no
others. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from rlhf.data.config import DataConfig, DatasetConfig
from rlhf.data.preference import PreferencePair
from rlhf.errors import DataError
from rlhf.types import Message, Task

Questions = Mapping[str, Sequence[str]]
"""What is asked, by the key of its dataset."""


def questions_of(tasks: Sequence[Task], config: DatasetConfig) -> list[str]:
    """Return the question of each task, without the recipe's additions; a task of an environment has no question."""
    return [_question(task, config) for task in tasks if task.messages]


def questions_of_pairs(pairs: Sequence[PreferencePair]) -> list[str]:
    """Return the question of each pair."""
    return [_said(pair.prompt) for pair in pairs]


def check_overlap(data: DataConfig, train: Questions, held_out: Questions, tell: Callable[[str], None]) -> None:
    """Tell how many problems of an evaluation set are also trained on. Raises `DataError` where that is every one,
    unless the recipe says that it is meant (`trained_on`). `train` is by key, `held_out` by name."""
    trained = {question for questions in train.values() for question in questions}
    for name, questions in held_out.items():
        asked = set(questions)
        if not (both := len(asked & trained)):
            continue
        words = f"{data.eval_key(name)}: {both} of {len(asked)} problems ({both / len(asked):.0%}) are also trained on"
        if both == len(asked) and not data.eval_sets[name].trained_on:
            raise DataError(
                f"{words}: its reward would say nothing of problems that are new; give another file or split, or "
                f"{data.eval_key(name)}.trained_on: true where that is what you want to see"
            )
        tell(words)


def _question(task: Task, config: DatasetConfig) -> str:
    asked = task.row.get(config.prompt_column) if config.path else None
    if isinstance(asked, str):
        return asked.strip()
    return _said(task.messages) if asked is None else json.dumps(asked, sort_keys=True, default=str)


def _said(messages: Sequence[Message]) -> str:
    if len(messages) == 1:
        return messages[0].content.strip()
    return json.dumps([(message.role, message.content) for message in messages])
