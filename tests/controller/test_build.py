"""How the parts are joined and ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf.apps.cli.check import told_by_template
from rlhf.chat.renderer import ChatRenderer
from rlhf.config import build
from rlhf.controller.build import (
    check_same_texts,
    context_reached,
    load_renderer,
    spawn_reward,
    start_engines,
    started_serving,
    stop_engines,
)
from rlhf.data.tasks import asking_tasks
from rlhf.engines.config import RolloutConfig
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.vllm.settings import EngineFacts
from rlhf.env.tools import CALCULATOR
from rlhf.errors import ConfigError, DeadlinePassed, ModelError
from rlhf.http.outages import Outages
from rlhf.models.tiny import byte_tokenizer
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import REWARD, reward_roles
from rlhf.types import Message, Scored, Task
from tests.engines.vllm.made import made_settings
from tests.models.vocabularies import tokenizer_of
from tests.models.wire import WIRES
from tests.reward.test_model import FakeWorker, trajectory
from tests.small_tasks import sorting

NO_WAIT = Outages(seconds=0, tell=print)


class Hanging:
    """A worker that answers nothing in time."""

    name = "engine-0"

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        raise DeadlinePassed(f"{self.name}.{method}", timeout_seconds)


async def test_an_engine_that_cannot_stop_does_not_hide_what_ended_the_run() -> None:
    await stop_engines([RemoteEngine(Hanging(), RolloutConfig())])


class Starting:
    """Starts in two ticks; `at_once` is how many of its kind have started together."""

    at_work = at_once = 0

    async def start(self) -> EngineFacts:
        Starting.at_work += 1
        Starting.at_once = max(Starting.at_once, Starting.at_work)
        await asyncio.sleep(0)
        Starting.at_work -= 1
        return EngineFacts(96, 64, "0", seconds=1, max_sequences=4)


@pytest.mark.parametrize(("together", "at_once"), [(True, 4), (False, 1)])
async def test_engines_that_share_a_gpu_start_one_after_another(together: bool, at_once: int) -> None:
    Starting.at_once = 0
    first, *others, reward = (Starting() for _ in range(4))
    facts = await start_engines([first, *others], reward, together=together)  # type: ignore[list-item, arg-type]
    assert (facts.vocab_size, Starting.at_once) == (64, at_once)


class Cluster:
    """Gives workers to whoever asks for some, and knows who asked."""

    def __init__(self) -> None:
        self.spawned: list[str] = []

    async def spawn(self, role: str, kwargs_of: Any) -> list[FakeWorker]:
        self.spawned.append(role)
        return [FakeWorker()]


async def test_a_reward_model_among_the_parts_of_a_reward_gets_its_workers(tmp_path: Path) -> None:
    parts = {"rule": {"kind": "exact"}, "taste": {"kind": "model", "model": "somebody/taste", "weight": 0.5}}
    values = {"model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "combined", "parts": parts}}
    recipe, cluster = build(Recipe, values), Cluster()
    assert [role.name for role in reward_roles(recipe)] == [REWARD]
    reward = await spawn_reward(recipe.reward, cluster, "policy", recipe.model, tmp_path, NO_WAIT)  # type: ignore[arg-type]
    await reward.start()
    (score,) = await reward(Task(id="t", messages=(), answer="x"), [trajectory(7)])
    assert score == Scored(value=3.5, parts={"rule": 0.0, "taste": 7.0})
    assert cluster.spawned == [REWARD]
    await reward.close()


async def test_a_question_that_the_chat_template_refuses_ends_a_run_before_an_engine_starts(tmp_path: Path) -> None:
    [gemma] = [wire for wire in WIRES if wire.name == "gemma"]
    tokenizer_of("byte-level BPE", gemma).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gemma2"}')
    recipe = build(Recipe, {"model": {"path": str(tmp_path)}, "data": {"train": sorting()}})
    asked, ruled = Message(role="user", content="2?"), Message(role="system", content="Be brief.")
    loaded = {"train": [Task(id="a", messages=(asked,)), Task(id="b", messages=(ruled, asked))], "seeds": []}
    serving = started_serving(
        recipe, cluster := Cluster(), str(tmp_path),  # type: ignore[arg-type]
        logs=tmp_path, publishes=False, tell=NO_WAIT.tell, asked=asking_tasks(loaded),
    )  # fmt: skip
    with pytest.raises(
        ModelError, match=f"model.path={tmp_path}: the chat template refuses .* of system, user: System"
    ):
        await serving.__aenter__()
    assert cluster.spawned == []


@pytest.mark.parametrize(
    "played",
    [
        {"agent": {"program": "tests.rollout.test_agent:twice", "tool_format": "hermes"}},
        {"environment": {"environment": "rlhf.env.tools:CalculatorEnvironment", "tool_format": "hermes"}},
    ],
    ids=["agent", "environment"],
)
async def test_a_template_that_writes_calls_in_another_format_ends_a_run_before_an_engine_starts(
    tmp_path: Path, played: dict[str, Any]
) -> None:
    [llama] = [wire for wire in WIRES if wire.name == "llama3"]
    tokenizer_of("byte-level BPE", llama).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    [key] = played
    values = {"model": {"path": str(tmp_path)}, "data": {"train": sorting()}, "reward": {"kind": "environment"}}
    recipe, cluster = build(Recipe, values | played), Cluster()
    serving = started_serving(recipe, cluster, str(tmp_path), logs=tmp_path, publishes=False, tell=NO_WAIT.tell)  # type: ignore[arg-type]
    refused = rf"{key}.tool_format is hermes, .*; set {key}.tool_format: llama3_json"
    with pytest.raises(ConfigError, match=refused):
        told_by_template(recipe)
    with pytest.raises(ConfigError, match=refused):
        await serving.__aenter__()
    assert cluster.spawned == []
    auto = build(Recipe, values | {key: {name: value for name, value in played[key].items() if name != "tool_format"}})
    renderer = load_renderer(auto, str(tmp_path), [CALCULATOR]).offering([CALCULATOR])
    call = '{"name": "calculator", "parameters": {"expression": "1+1"}}'
    assert len(renderer.parsed(call, np.zeros(0, np.int32)).calls) == 1


def test_the_longest_canary_is_as_long_as_the_longest_prompt_with_its_reply() -> None:
    asked = [Task(id=text, messages=(Message(role="user", content=text),)) for text in ("a", "abc", "ab")]
    tasks, length = [asked[:2], asked[2:]], lambda task: 10 + len(task.messages[0].content)
    recipe = build(Recipe, {"model": {"tiny": {}}, "data": {"train": sorting()}, "sampling": {"max_tokens": 7}})
    assert context_reached(recipe, tasks, length, 4096) == 13 + 7
    assert context_reached(recipe, tasks, length, 16) == 16, "no longer than the context"
    with_turns = recipe.model_copy(update={"environment": object()})
    assert context_reached(with_turns, tasks, length, 4096) == 4096, "turns may fill it"


def test_policies_have_models_that_read_and_write_the_same_texts(tmp_path: Path) -> None:
    own, other = byte_tokenizer(), byte_tokenizer()
    renderer = ChatRenderer(own)
    own.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    check_same_texts(renderer, made_settings(str(tmp_path)))
    other.chat_template = "{{ messages }}"
    other.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"policies two: the tokenizer or chat template of .* is another than that"):
        check_same_texts(renderer, made_settings(str(tmp_path), policies=("two",)))
