"""How the parts are joined and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf.config import build
from rlhf.errors import DeadlinePassed
from rlhf.recipe import Recipe
from rlhf.roles import REWARD, reward_roles
from rlhf.rollout.engine import RemoteEngine
from rlhf.types import Scored, Task
from rlhf.wiring import spawn_reward, stop_engines
from tests.reward.test_model import FakeWorker, trajectory


class Hanging:
    """A worker that answers nothing in time."""

    name = "engine-0"

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        raise DeadlinePassed(f"{self.name}.{method}", timeout_seconds)


async def test_an_engine_that_cannot_stop_does_not_hide_what_ended_the_run() -> None:
    await stop_engines([RemoteEngine(Hanging())])


class Cluster:
    """Gives workers to whoever asks for some, and knows who asked."""

    def __init__(self) -> None:
        self.spawned: list[str] = []

    async def spawn(self, role: str, kwargs_of: Any) -> list[FakeWorker]:
        self.spawned.append(role)
        return [FakeWorker()]


async def test_a_reward_model_among_the_parts_of_a_reward_gets_its_workers(tmp_path: Path) -> None:
    parts = {"rule": {"kind": "exact"}, "taste": {"kind": "model", "model": "somebody/taste", "weight": 0.5}}
    values = {"model": {"tiny": {}}, "data": {"train": {"sorting": {}}}, "reward": {"kind": "combined", "parts": parts}}
    recipe, cluster = build(Recipe, values), Cluster()
    assert [role.name for role in reward_roles(recipe)] == [REWARD]
    reward = await spawn_reward(recipe, cluster, "policy", tmp_path)  # type: ignore[arg-type]
    await reward.start()
    (score,) = await reward(Task(id="t", messages=(), answer="x"), [trajectory(7)])
    assert score == Scored(value=3.5, parts={"rule": 0.0, "taste": 7.0})
    assert cluster.spawned == [REWARD]
    await reward.close()
