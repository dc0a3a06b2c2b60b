"""What a recipe says of its environment is checked before anything starts, and each refusal says what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf.cluster.local import LocalCluster
from rlhf.env.starting import started_environments
from rlhf.errors import ConfigError, RecordingError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.preflight import check_players
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import environment_roles

CALCULATOR = {"environment": "rlhf.env.tools:CalculatorEnvironment"}
SEEDS = {"train": {"seeds": 64}, "eval": {"seeds": 8}}


def recipe(environment: Any = CALCULATOR, **parts: Any) -> Recipe:
    values = {"data": SEEDS, "reward": {"kind": "environment"}, "environment": environment} | parts
    return recipe_from({"model": {"tiny": {}}, **values}).recipe


def refusal(environment: Any = CALCULATOR, **parts: Any) -> str:
    with pytest.raises(ConfigError) as error:
        recipe(environment, **parts)
    return str(error.value)


def test_a_recipe_with_an_environment_needs_little() -> None:
    config = recipe().environment
    assert config is not None
    assert (config.last_n, config.tool_format) == (None, "auto")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "give exactly one of environment (module:Class"),
        (CALCULATOR | {"urls": ["http://h:1"]}, "give exactly one of environment (module:Class"),
        (CALCULATOR | {"tools": ["a:b"]}, "give exactly one of environment (module:Class"),
        ({"tools": ["b"]}, "tools has 'b'; give module:function or module:Class"),
        ({"environment": "calculator"}, "environment is 'calculator'; give module:Class"),
        ({"urls": ["http://h:1"], "arguments": {"digits": 2}}, "arguments are for an environment that this run hosts"),
        ({"urls": ["http://h:1"], "servers": 2}, "servers is the number of servers that this run starts"),
        ({"urls": ["http://h:1"], "isolation": "process"}, "isolation is for an environment that this run hosts"),
        (CALCULATOR | {"tool_format": "xml"}, "use auto, hermes, llama3_json, mistral"),
        (CALCULATOR | {"max_turn": 3}, "did you mean 'environment.max_turns'"),
    ],
)
def test_what_does_not_go_together_is_refused(environment: dict[str, Any], words: str) -> None:
    assert words in refusal(environment)


def test_the_parts_of_a_recipe_agree_on_its_environment() -> None:
    assert "reward.kind is environment, but the recipe has neither environment nor agent" in refusal(
        None, data={"train": {"path": "x"}}
    )
    assert "data.train.seeds are questions of an environment, but the recipe has no environment" in refusal(
        None, reward={"kind": "regex", "pattern": "x"}
    )
    assert "reward.kind: exact compares with an answer, which data.train.seeds lack" in refusal(
        reward={"kind": "exact"}
    )
    assert "data.train.seeds are questions of an environment, but the recipe has only tools" in refusal(
        {"tools": ["a:b"]}, reward={"kind": "regex", "pattern": "x"}
    )
    assert "the functions of environment.tools give no rewards; use exact" in refusal(
        {"tools": ["a:b"]}, data={"train": {"path": "x"}}
    )
    assert "kind: sft plays no episodes" in refusal(kind="sft", reward={"kind": "exact"})
    assert "environment.servers is 2, but cluster.kind: local starts no processes" in refusal(
        CALCULATOR | {"servers": 2}, cluster={"kind": "local"}
    )
    overlong = {"overlong": {"buffer_tokens": 4}}
    assert "trainer.overlong prices the length of one reply" in refusal(trainer=overlong)
    assert "model.warmup.demonstrations is required" in refusal(model={"tiny": {}, "warmup": {}})
    assert "which seeds lack" in refusal(data={"train": {"seeds": 8, "max_prompt_tokens": 9}})
    assert "exactly one of path" in refusal(data={"train": {"seeds": 8, "path": "x"}})


@pytest.mark.parametrize(
    "wrong", [{"environment": "rlhf.env.tools:NoSuchEnvironment"}, CALCULATOR | {"tool_format": "nowhere:function"}]
)
def test_what_cannot_be_imported_is_found_before_anything_starts(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="which cannot be imported"):
        check_players(recipe(wrong))


def test_a_recording_is_looked_for_before_anything_starts_and_stands_for_the_environment(tmp_path: Path) -> None:
    recording = {"recording": {"path": str(tmp_path / "c.jsonl")}}
    missing = recipe({"environment": "nowhere:Environment", "servers": 2} | recording)
    with pytest.raises(RecordingError, match=r"no such recording; record it first"):
        check_players(missing)
    (tmp_path / "c.jsonl").touch()
    check_players(missing)
    assert environment_roles(missing) == ()


async def test_a_server_that_does_not_answer_is_told_with_its_address() -> None:
    config = recipe({"urls": ["http://127.0.0.1:9"], "start_timeout_seconds": 0.2}).environment
    assert config is not None
    with pytest.raises(ConfigError, match=r"environment http://127\.0\.0\.1:9: no answer within 0\.2 s"):
        async with started_environments(config, LocalCluster(), alone=True):
            pass
