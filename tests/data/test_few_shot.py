"""Examples before a prompt: chosen by the seed, the same for all prompts, and never what is asked or held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf.config import build
from rlhf.data.config import DataConfig
from rlhf.data.few_shot import with_shots
from rlhf.data.sources import load_demonstrations, load_pairs, load_tasks
from rlhf.errors import ConfigError, DataError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.preflight import check_few_shot
from rlhf.types import Message


def data(folder: Path, *, held_out: int = 0, train: dict[str, Any] | None = None, **few_shot: Any) -> DataConfig:
    """Return ten rows to train on, the first `held_out` of which are evaluated, with examples of the same ten."""
    rows = [{"q": str(n), "answer": f"a{n}", "why": f"w{n}", "bad": "x"} for n in range(10)]
    for name, some in (("train", rows), ("eval", rows[:held_out])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    path = {"path": str(folder / "train.jsonl")}
    given = {"template": "{{ q }}?", "system_prompt": "S", "few_shot": {"k": 3} | (few_shot or path)}
    sets: dict[str, Any] = {"train": path | given | (train or {})}
    if held_out:
        sets["eval"] = {"path": str(folder / "eval.jsonl")} | given
    return build(DataConfig, sets)


def asked(messages: tuple[Message, ...]) -> list[str]:
    return [one.content for one in messages if one.role == "user"]


def test_the_seed_chooses_the_same_examples_for_every_prompt(tmp_path: Path) -> None:
    made = data(tmp_path)
    tasks = load_tasks(made.train_sets["data.train"])
    prompts = [one.messages for one in with_shots(tasks, made, "data.train", 7)]
    assert prompts == [one.messages for one in with_shots(tasks, made, "data.train", 7)]
    assert prompts != [one.messages for one in with_shots(tasks, made, "data.train", 8)]
    chosen = max([asked(one)[:-1] for one in prompts], key=[asked(one)[:-1] for one in prompts].count)
    for number, prompt in enumerate(prompts):
        assert [one.role for one in prompt] == ["system", *["user", "assistant"] * 3, "user"]
        assert asked(prompt)[-1] == f"{number}?"
        shown = asked(prompt)[:-1]
        assert f"{number}?" not in shown, "no prompt shows its own answer"
        assert shown == chosen if f"{number}?" not in chosen else shown[:2] == [one for one in chosen if one in shown]
        assert [one.content for one in prompt if one.role == "assistant"] == [f"a{one[:-1]}" for one in shown]


def test_held_out_rows_are_never_shown(tmp_path: Path) -> None:
    made = data(tmp_path, held_out=6)
    for key in ("data.train", "data.eval"):
        for seed in range(10):
            (one, *_) = with_shots(load_tasks(made.sets[key]), made, key, seed)
            assert {int(text[:-1]) for text in asked(one.messages)[:-1]} <= set(range(6, 10))
    with pytest.raises(DataError, match=r"data\.train\.few_shot\.k is 3, but of 10 rows only 2 ask different"):
        with_shots([], data(tmp_path, held_out=8), "data.train", 0)


def test_examples_may_be_in_the_recipe_and_have_a_template_of_their_reply(tmp_path: Path) -> None:
    rows = [{"q": "77", "answer": "a77", "why": "w77"}]
    made = data(tmp_path, k=1, rows=rows, reply="<think>{{ why }}</think>{{ answer }}")
    (one, *_) = with_shots(load_tasks(made.train_sets["data.train"]), made, "data.train", 0)
    assert [one.content for one in one.messages] == ["S", "77?", "<think>w77</think>a77", "0?"]


def test_demonstrations_and_pairs_have_examples_that_are_not_imitated(tmp_path: Path) -> None:
    made = data(tmp_path, train={"response_column": "why", "chosen_column": "answer", "rejected_column": "bad"})
    config = made.train_sets["data.train"]
    (lesson, *_) = with_shots(
        load_demonstrations(config.model_copy(update={"chosen_column": None})), made, "data.train", 0
    )
    assert len(asked(lesson.prompt)) == 4
    assert [lesson.messages[place].content for place in lesson.replies] == ["w0"]
    (pair, *_) = with_shots(load_pairs(config).pairs, made, "data.train", 0)
    assert (len(pair.prompt), pair.chosen) == (8, "a0")


def test_a_kind_that_would_not_show_examples_is_refused(tmp_path: Path) -> None:
    few = {"k": 1, "rows": [{"question": "q", "answer": "a"}]}
    (tmp_path / "rows.jsonl").write_text('{"question": "r", "answer": "b"}\n')
    train = {"path": str(tmp_path / "rows.jsonl"), "few_shot": few}
    recipe = recipe_from({"kind": "tests.pieces:trainer", "model": {"path": "m"}, "data": {"train": train}}).recipe
    with pytest.raises(ConfigError, match=r"data\.train\.few_shot is for the built-in kinds"):
        check_few_shot(recipe)
