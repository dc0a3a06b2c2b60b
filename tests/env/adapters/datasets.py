"""All datasets of reasoning-gym behind one server: the task's row names the dataset."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.types import EnvironmentSpec, Message, Observation, Task

SEED, SIZE = 5, 1000
OPTIONS: dict[str, dict[str, Any]] = {
    "composite": {"datasets": [{"name": "leg_counting", "weight": 1}, {"name": "gcd", "weight": 2}]},
}
"""What a dataset cannot be made without."""


class AnyDataset:
    """One problem of the dataset `row["dataset"]`, through the adapter."""

    spec = EnvironmentSpec(name="any dataset", description="reasoning-gym, all of it")

    def reset(self, task: Task, *, seed: int) -> Observation:
        name = task.row["dataset"]
        self._inner = ReasoningGymEnvironment(name, seed=SEED, size=SIZE, options=OPTIONS.get(name))
        return self._inner.reset(task, seed=seed)

    def step(self, action: Message) -> Observation:
        return self._inner.step(action)

    def close(self) -> None:
        """Nothing is held."""


def straight_from_the_library(indices: list[int]) -> dict[str, list[Any]]:
    """Every dataset's entries at the indices, without any of our code."""
    import reasoning_gym
    from reasoning_gym.composite import DatasetSpec

    entries = {}
    for name in sorted(reasoning_gym.factory.DATASETS):
        options = {
            key: [DatasetSpec(config={}, **part) for part in parts] for key, parts in OPTIONS.get(name, {}).items()
        }
        problems = reasoning_gym.create_dataset(name, seed=SEED, size=SIZE, **options)
        entries[name] = [problems[index] for index in indices]
    return entries


if __name__ == "__main__":
    found = straight_from_the_library(json.loads(sys.argv[2]))
    Path(sys.argv[1]).write_text(json.dumps(found, default=str))
