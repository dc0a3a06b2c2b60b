"""Count problems in both training and evaluation, and refuse an evaluation set without other problems."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from rlhf.data.columns import column_value
from rlhf.data.config import DataConfig, DatasetConfig
from rlhf.data.preference import PreferencePair
from rlhf.errors import DataError
from rlhf.types import Message, Task

Questions = Mapping[str, Sequence[str]]
"""Questions, by the key of their dataset."""


def questions_of(tasks: Sequence[Task], config: DatasetConfig) -> list[str]:
    """Return the question of each task, without the recipe's additions; a task of an environment has no question."""
    return [_question(task, config) + _images(task.messages) for task in tasks if task.messages]


def questions_of_pairs(pairs: Sequence[PreferencePair]) -> list[str]:
    return [_text(pair.prompt) + _images(pair.prompt) for pair in pairs]


def check_overlap(data: DataConfig, train: Questions, held_out: Questions, tell: Callable[[str], None]) -> None:
    """Report how many problems of an evaluation set are also trained on. Raises `DataError` if all are, unless the
    recipe sets `trained_on`. `train` is by key, `held_out` by name."""
    trained = {question for questions in train.values() for question in questions}
    for name, questions in held_out.items():
        evaluated = set(questions)
        if not (both := len(evaluated & trained)):
            continue
        share = f"{both} of {len(evaluated)} problems ({both / len(evaluated):.0%})"
        message = f"{data.eval_key(name)}: {share} are also trained on"
        if both == len(evaluated) and not data.eval_sets[name].trained_on:
            raise DataError(
                f"{message}: its reward would not measure new problems; give another file or split, or set "
                f"{data.eval_key(name)}.trained_on: true if you want that"
            )
        tell(message)


def _question(task: Task, config: DatasetConfig) -> str:
    prompt = column_value(task.row, config.prompt_column) if config.path else None
    if isinstance(prompt, str):
        return prompt.strip()
    if prompt is None and config.template:
        return task.messages[-1].content.strip()
    return _text(task.messages) if prompt is None else json.dumps(prompt, sort_keys=True, default=str)


def _images(messages: Sequence[Message]) -> str:
    return "".join(image.sha256 for message in messages for image in message.images)


def _text(messages: Sequence[Message]) -> str:
    if len(messages) == 1:
        return messages[0].content.strip()
    return json.dumps([(message.role, message.content) for message in messages])
