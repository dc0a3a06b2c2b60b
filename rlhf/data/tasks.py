"""Load the datasets of a recipe before its workers start, so that a bad row ends the run early, and select tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from rlhf.data.config import DataConfig, DatasetConfig
from rlhf.data.few_shot import with_shots
from rlhf.data.learnability import ChosenTasks, TaskChoices
from rlhf.data.mixing import MixedOrder
from rlhf.data.selection import PromptTokens, check_room, distinct, of_right_length
from rlhf.data.sources import load_tasks
from rlhf.errors import DataError
from rlhf.types import Task

T = TypeVar("T")
Tell = Callable[[str], None]
Loaded = Mapping[str, Sequence[Task]]
"""Tasks by the key of their dataset."""


def load_sets(sets: Mapping[str, DatasetConfig], *, asks: bool = False) -> dict[str, list[Task]]:
    """Load every task of every dataset. With `asks` each task needs messages. Raises `DataError`."""
    loaded = {key: load_tasks(config) for key, config in sets.items()}
    silent = [(key, task) for key, tasks in loaded.items() for task in tasks if not task.messages]
    if asks and silent:
        key, task = silent[0]
        raise DataError(
            f"{key}: task {task.id} has no messages, and the recipe has no environment that asks; give it messages"
        )
    return loaded


def asking_tasks(*loaded: Loaded) -> Iterator[Task]:
    """Iterate over all these tasks that have messages; questions of an environment are not known yet."""
    return (task for sets in loaded for tasks in sets.values() for task in tasks if task.messages)


def training_tasks(
    data: DataConfig, loaded: Loaded, prompt_tokens: PromptTokens, tell: Tell, *, seed: int, context: int | None = None
) -> list[list[Task]]:
    """Return the tasks of each training set, after their examples, with prompts of the right length. Raises
    `DataError`."""
    return [
        fitting(with_shots(loaded[key], data, key, seed), config, prompt_tokens, key, tell, context)
        for key, config in data.train_sets.items()
    ]


def mixed(data: DataConfig, rows: Sequence[Sequence[T]], seed: int) -> MixedOrder[T]:
    """Mix the items of the training sets into the order of training."""
    return MixedOrder(rows, [config.weight for config in data.train_sets.values()], seed, data.shuffle)


def chosen_tasks(
    data: DataConfig, tasks: Sequence[Sequence[Task]], seed: int, choices: TaskChoices | None
) -> ChosenTasks[Task]:
    """Return the tasks of a run, chosen as their sets say; a resumed run continues with these `choices`."""
    sets = enumerate(data.train_sets.values())
    by_learnability = [dataset for dataset, config in sets if config.order == "learnability"]
    return ChosenTasks(mixed(data, tasks, seed), by_learnability, choices)


def held_out_problems(
    data: DataConfig, loaded: Loaded, prompt_tokens: PromptTokens, tell: Tell, *, seed: int, context: int | None = None
) -> dict[str, list[Task]]:
    """Return the distinct problems of each evaluation set by name. Raises `DataError` as `training_tasks` does."""
    problems = {}
    for name, config in data.eval_sets.items():
        key = data.eval_key(name)
        tasks = fitting(with_shots(loaded[name], data, key, seed), config, prompt_tokens, key, tell, context)
        problems[name] = distinct(tasks, key, tell)
    return problems


def fitting(
    tasks: Sequence[Task], config: DatasetConfig, prompt_tokens: PromptTokens, key: str, tell: Tell, context: int | None
) -> list[Task]:
    """Return the tasks of one set, as `training_tasks` does."""
    kept = of_right_length(tasks, config, prompt_tokens, key, tell)
    if context is not None:
        check_room(kept, context, prompt_tokens, key)
    return kept
