"""Alternatives of one choice replace each other from layer to layer of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf.config import dump_yaml, merge
from rlhf.errors import ConfigError
from rlhf.recipe.from_python import recipe_from_python
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.schema import Recipe

TASKS = {"tasks": "my_tasks:make", "arguments": {"count": 8}, "max_prompt_tokens": 50}
ROWS = {"path": "their.jsonl", "split": "test", "prompt_column": "problem", "system_prompt": "Be brief."}
HOSTED = {
    "environment": "my_game:Game", "arguments": {"size": 3}, "eval_arguments": {"size": 4}, "isolation": "process",
}  # fmt: skip
FUNCTION = {"kind": "function", "function": "my:reward", "arguments": {"scale": 2}, "on_scorer_failure": 0.0}
JUDGE = {"kind": "judge", "judge": {"url": "http://127.0.0.1:1/v1", "model": "m"}, "recording": {"path": "r.jsonl"}}
PROGRAM = {"program": "my_agent:play", "arguments": {"depth": 2}}
PLAIN = {"model": {"path": "m"}, "data": {"train": {"path": "train.jsonl"}}}

LATER = [
    ("data.train", TASKS, {"path": "my.jsonl"}, {"path": "my.jsonl", "max_prompt_tokens": 50}),
    ("data.train", ROWS, {"tasks": "my_tasks:make"}, {"tasks": "my_tasks:make"}),
    ("data.train", TASKS, {"seeds": 4}, {"seeds": 4}),
    ("data.train", TASKS, {"tasks": "my:f", "arguments": {"n": 1}}, {**TASKS, "tasks": "my:f", "arguments": {"n": 1}}),
    ("data.train", TASKS, {"arguments": {"count": 9}}, {**TASKS, "arguments": {"count": 9}}),
    ("data.train", TASKS, {"path": None, "limit": 2}, {**TASKS, "path": None, "limit": 2}),
    ("data.train", ROWS, {"path": "my.jsonl"}, {**ROWS, "path": "my.jsonl"}),
    ("data.eval", TASKS, {"path": "my.jsonl"}, {"path": "my.jsonl", "max_prompt_tokens": 50}),
    ("data.eval.hard", TASKS, {"path": "my.jsonl"}, {"path": "my.jsonl", "max_prompt_tokens": 50}),
    ("environment", HOSTED, {"urls": ["http://127.0.0.1:1"]}, {"urls": ["http://127.0.0.1:1"]}),
    ("environment", {"urls": ["http://127.0.0.1:1"], "token_env": "T"}, HOSTED, HOSTED),
    ("environment", HOSTED, {"urls": [], "max_turns": 2}, {**HOSTED, "urls": [], "max_turns": 2}),
    ("model", {"tiny": {}, "warmup": {"demonstrations": "my:lessons"}}, {"path": "m"}, {"path": "m"}),
    ("model", {"path": "m"}, {"tiny": {"layers": 2}}, {"tiny": {"layers": 2}}),
    ("reward", FUNCTION, {"kind": "exact"}, {"kind": "exact"}),
    ("reward", FUNCTION, {"kind": "math"}, {"kind": "math", "on_scorer_failure": 0.0}),
    ("reward", FUNCTION, {"kind": "function"}, FUNCTION),
    ("reward", FUNCTION, JUDGE, {**JUDGE, "on_scorer_failure": 0.0}),
    ("reward", JUDGE, {"kind": "model", "model": "m"}, {"kind": "model", "model": "m"}),
    ("reward", {"kind": "combined", "parts": {"model": FUNCTION}}, {"kind": "none"}, {"kind": "none"}),
    ("reward.parts.model", FUNCTION, {"kind": "exact", "weight": 2.0}, {"kind": "exact", "weight": 2.0}),
    ("environment.arguments", {"tasks": "t", "name": "n"}, {"path": "p"}, {"tasks": "t", "name": "n", "path": "p"}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "earlier", "later", "together"), LATER)
def test_an_alternative_replaces_those_of_earlier_layers_and_what_belongs_to_them(
    key: str, earlier: dict[str, Any], later: dict[str, Any], together: dict[str, Any]
) -> None:
    values, origins = merge(("base", {key: earlier}), ("own", {key: later}), kind=Recipe)
    wanted, _ = merge(("wanted", {key: together}))
    assert values == wanted
    assert set(origins) == set(merge(("wanted", {key: together}))[1])


def test_an_agent_replaces_the_environment_of_an_earlier_layer() -> None:
    assert merge(("base", {"environment": HOSTED}), ("own", {"agent": PROGRAM}), kind=Recipe)[0] == {"agent": PROGRAM}
    assert merge(("base", {"agent": PROGRAM}), ("own", {"environment": HOSTED}), kind=Recipe)[0] == {
        "environment": HOSTED
    }


def test_a_recipe_replaces_the_tasks_of_its_base_and_an_override_those_of_the_recipe(tmp_path: Path) -> None:
    base, own = tmp_path / "base.yaml", tmp_path / "own.yaml"
    base.write_text(dump_yaml({"model": {"path": "m"}, "data": {"train": TASKS}}))
    own.write_text("base: base.yaml\ndata: {train: {path: my.jsonl}}\n")
    loaded = load_recipe(own)
    (train,) = loaded.recipe.data.train_sets.values()
    assert (train.path, train.tasks, train.arguments, train.max_prompt_tokens) == ("my.jsonl", None, {}, 50)
    assert not loaded.says("data.train.arguments")
    (train,) = load_recipe(own, ["data.train.arguments.n=1", "data.train.tasks=my:f"]).recipe.data.train_sets.values()
    assert (train.path, train.tasks, train.arguments) == (None, "my:f", {"n": 1})
    (train,) = load_recipe(base, ["data.train.arguments.count=9"]).recipe.data.train_sets.values()
    assert (train.tasks, train.arguments) == ("my_tasks:make", {"count": 9})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": {"train": {**TASKS, "path": "my.jsonl"}}}, "give exactly one of path"),
        ({"data": {"train": {"path": "my.jsonl", "arguments": {"count": 8}}}}, "arguments are for the function"),
        ({"environment": HOSTED, "agent": PROGRAM}, "both environment and agent"),
        ({"reward": {"kind": "exact", "arguments": {"scale": 2}}}, "arguments belong to kind: function"),
        ({"model": {"path": "m", "tiny": {}}}, "exactly one of path"),
    ],
)
def test_a_file_that_gives_two_alternatives_is_refused_over_any_base(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    base, own = tmp_path / "base.yaml", tmp_path / "own.yaml"
    base.write_text(dump_yaml({**PLAIN, "data": {"train": TASKS}, "reward": FUNCTION, "environment": HOSTED}))
    own.write_text(dump_yaml({"base": "base.yaml", **given}))
    with pytest.raises(ConfigError, match=said):
        load_recipe(own)


def test_sections_of_a_program_are_layers_too() -> None:
    loaded = recipe_from_python(PLAIN, {"reward": FUNCTION}, {"reward": {"kind": "exact"}})
    assert loaded.recipe.reward.kind == "exact"
    assert not loaded.recipe.reward.arguments
