"""One dataset or several: what a recipe may write, and what it is told when it may not."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.config import build, merge, parse_override
from rlhf.data.config import DataConfig
from rlhf.errors import ConfigError
from tests.small_tasks import sorting

ROWS = {"path": "rows.jsonl"}
MADE = sorting()
HELD_OUT = sorting(split="eval")


def data(train: Any = ROWS, **settings: Any) -> DataConfig:
    return build(DataConfig, {"train": train} | settings)


def refused(train: Any = ROWS, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        data(train, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def overridden(values: dict[str, Any], *overrides: str) -> DataConfig:
    layers = [("override", {key: value}) for key, value in map(parse_override, overrides)]
    return build(DataConfig, merge(("recipe", values), *layers)[0])


def test_one_dataset_and_a_list_of_them_are_both_training_sets() -> None:
    assert list(data().train_sets) == ["data.train"]
    mixture = data([ROWS | {"weight": 3}, {"path": "more.jsonl", "weight": 1}])
    assert {key: (one.path, one.weight) for key, one in mixture.train_sets.items()} == {
        "data.train.0": ("rows.jsonl", 3.0), "data.train.1": ("more.jsonl", 1.0),
    }  # fmt: skip


def test_one_evaluation_set_has_no_name_and_several_have_theirs() -> None:
    assert list(data(eval=ROWS).sets) == ["data.train", "data.eval"]
    named = data(eval={"easy": ROWS, "hard": ROWS | {"samples": 4, "temperature": 1}})
    assert list(named.sets) == ["data.train", "data.eval.easy", "data.eval.hard"]
    assert named.eval_sets["hard"].samples == 4
    assert data().eval_sets == {}


def test_a_recipe_with_many_sets_is_read_back_as_it_was_written_out() -> None:
    many = data([ROWS, {"path": "more.jsonl"}], eval={"easy": ROWS, "hard": ROWS})
    assert build(DataConfig, many.model_dump(mode="json")) == many


def test_overrides_reach_one_dataset_and_one_set_by_name() -> None:
    assert overridden({"train": ROWS}, "train.path=other.jsonl").train_sets["data.train"].path == "other.jsonl"
    named = overridden({"train": ROWS, "eval": {"easy": ROWS, "hard": ROWS}}, "eval.hard.limit=5")
    assert [one.limit for one in named.eval_sets.values()] == [None, 5]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train": []}, "train is an empty list"),
        ({"train": [ROWS, {"path": "x", "weight": 2}]}, "give every dataset of train a weight, or none of them"),
        ({"train": [ROWS, {"pth": "x"}]}, "unknown key 'train.1.pth'; did you mean 'train.path'?"),
        ({"train": [ROWS, 3]}, "train.1: "),
        ({"train": {"path": "x", "weight": 0}}, "train.weight: "),
        ({"train": "rows.jsonl"}, "train: "),
        ({"train": MADE | ROWS}, "exactly one of path"),
        ({"train": ROWS | {"arguments": {"rows": 3}}}, "arguments are for the function in tasks"),
        ({"train": {"tasks": "recipes.tasks.sorting"}}, "tasks is 'recipes.tasks.sorting'; give module:function"),
        ({"train": MADE | {"split": "eval"}}, "split is for rows of a dataset"),
        ({"train": MADE | {"system_prompt": "Be brief."}}, "system_prompt is for rows of a dataset"),
        ({"eval": {"easy": {"pth": "x"}}}, "unknown key 'eval.easy.pth'"),
        ({"eval": {"pth": "x"}}, "unknown key 'eval.pth'; did you mean 'eval.path'?"),
        ({"eval": {"very easy": ROWS}}, "a set named 'very easy'"),
        ({"eval": {"easy": ROWS, "path": "x"}}, "unknown key 'eval.easy'"),
        ({"eval": {}}, "exactly one of path"),
        ({"chat_template_arguments": {"add_generation_prompt": False}}, "add_generation_prompt"),
    ],
)
def test_wrong_sets_are_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    assert words in refused(**settings)


def test_held_out_tasks_that_are_made_as_those_of_training_are_refused_in_every_set() -> None:
    assert data([ROWS, MADE], eval={"easy": HELD_OUT, "hard": HELD_OUT})
    message = refused([ROWS, MADE], eval={"easy": HELD_OUT, "hard": MADE})
    assert message.startswith("data.eval.hard.arguments are those of data.train")
    assert data(MADE, eval=MADE | {"trained_on": True})
