"""Adapter for reasoning-gym's datasets as single-turn environments: a question, an answer, the library's own score."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Mapping
from typing import Any, Literal

from rlhf.env.adapters.imports import imported
from rlhf.env.single_turn import first_messages
from rlhf.errors import ConfigError
from rlhf.types import EnvironmentSpec, Message, Observation, Task

TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
IN_TAGS = "Write your final answer, and nothing else, between <answer> and </answer>."
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)
"""Exceptions of the library's scorers for an answer in an unexpected form: the answer is wrong."""
_GENERATING = threading.RLock()


class ReasoningGymEnvironment:
    """One problem of the dataset `name`, made with `options` and `seed`. The task's `row["index"]` selects it, else
    `seed % size` of the reset's seed. The answer is the content of the last `<answer>…</answer>` of the reply, or with
    `answer="reply"` the whole reply, stripped. The reward is the library's score of it, 0 to 1; a reply without an
    answer is scored as None. Raises `ConfigError`."""

    def __init__(
        self,
        name: str,
        *,
        seed: int = 0,
        size: int = 1000,
        options: Mapping[str, Any] | None = None,
        answer: Literal["tags", "reply"] = "tags",
    ) -> None:
        self._problems = dataset(name, seed, size, json.dumps(options or {}, sort_keys=True))
        self._size, self._in_tags = size, answer == "tags"
        self.problem: Mapping[str, Any] = {}
        """The problem as the library made it, with its answer."""
        self.spec = EnvironmentSpec(name=name, description=f"{name} of reasoning-gym: one question, one answer")

    def reset(self, task: Task, *, seed: int) -> Observation:
        index = int(task.row.get("index", seed)) % self._size
        with _GENERATING:  # datasets are shared, and some keep their last draw
            self.problem = self._problems[index]
        question = str(self.problem["question"])
        return Observation(
            messages=first_messages(task, f"{question}\n\n{IN_TAGS}" if self._in_tags else question),
            info={"index": index},
        )

    def step(self, action: Message) -> Observation:
        if not self.problem:
            raise RuntimeError("step before reset: there is no question to answer")
        found = TAGS.findall(action.content) if self._in_tags else [action.content]
        answer = found[-1].strip() if found else None
        info = {"answer": answer}
        try:
            score = float(self._problems.score_answer(answer, self.problem))
        except UNREADABLE as error:
            score, info["unreadable"] = 0.0, f"{type(error).__name__}: {error}"
        return Observation(messages=(), reward=score, terminated=True, info=info)

    def close(self) -> None:
        self.problem = {}


@functools.lru_cache(maxsize=64)
def dataset(name: str, seed: int, size: int, options: str) -> Any:
    """Return the dataset, shared by all episodes of this process: some read files when made. Raises `ConfigError`."""
    library = imported("reasoning_gym")
    if name not in library.factory.DATASETS:
        close = ", ".join(known for known in sorted(library.factory.DATASETS) if known[:3] == name[:3])
        raise ConfigError(f"reasoning-gym has no dataset {name}" + (f"; similar names: {close}" if close else ""))
    try:
        with _GENERATING:
            return library.create_dataset(name, seed=seed, size=size, **_settings(library, name, json.loads(options)))
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"reasoning-gym cannot make {name} with {options}: {error}") from error


def _settings(library: Any, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options in the library's types: each part of a composite dataset is an object."""
    if name != "composite":
        return options
    parts = [library.composite.DatasetSpec(**{"config": {}, **part}) for part in options.get("datasets", [])]
    return {**options, "datasets": parts}
