"""What is trained on and evaluated with is counted by what is asked, and a set without other problems is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf.data.config import DataConfig
from rlhf.data.overlap import check_overlap, questions_of, questions_of_pairs
from rlhf.data.preference import PreferencePair
from rlhf.data.tasks import load_sets
from rlhf.errors import DataError
from rlhf.types import Message
from tests.small_tasks import sorting


def rows(folder: Path, name: str, *questions: str) -> str:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(f'{{"question": "{one}", "answer": "1"}}\n' for one in questions))
    return str(file)


def told(data: DataConfig) -> list[str]:
    heard: list[str] = []
    train, held_out = load_sets(data.train_sets), load_sets(data.eval_sets)
    check_overlap(
        data,
        {key: questions_of(train[key], config) for key, config in data.train_sets.items()},
        {name: questions_of(held_out[name], config) for name, config in data.eval_sets.items()},
        heard.append,
    )
    return heard


def test_problems_in_both_are_counted_once_and_told(tmp_path: Path) -> None:
    train, more = rows(tmp_path, "train", "a", "b", "b"), rows(tmp_path, "more", "c")
    held_out = rows(tmp_path, "eval", "b", " c ", "c", "d", "e")
    data = DataConfig(train=[{"path": train}, {"path": more}], eval={"path": held_out})
    assert told(data) == ["data.eval: 2 of 4 problems (50%) are also trained on"]


def test_sets_that_share_nothing_need_no_words(tmp_path: Path) -> None:
    assert told(DataConfig(train={"path": rows(tmp_path, "a", "x")}, eval={"path": rows(tmp_path, "b", "y")})) == []
    made = sorting(rows=512), sorting(rows=512, split="eval")
    assert told(DataConfig(train=made[0], eval=made[1])) == []
    assert told(DataConfig(train={"seeds": 4}, eval={"seeds": 4})) == [], "an environment asks other questions of each"


@pytest.mark.parametrize("said", [{}, {"prompt_suffix": "\nThink.", "system_prompt": "Brief."}, {"limit": 1}])
def test_a_set_that_is_all_trained_on_is_refused_whatever_is_said_around_it(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    path = rows(tmp_path, "both", "a", "b")
    with pytest.raises(DataError, match=r"data\.eval\.hard: . of . problems \(100%\) are also trained on.*trained_on"):
        told(DataConfig(train={"path": path}, eval={"hard": {"path": path, **said}}))


def test_a_set_that_is_meant_to_be_trained_on_is_told(tmp_path: Path) -> None:
    path = rows(tmp_path, "both", "a", "b")
    data = DataConfig(train={"path": path}, eval={"path": path, "trained_on": True})
    assert told(data) == ["data.eval: 2 of 2 problems (100%) are also trained on"]


def test_pairs_are_compared_by_what_they_reply_to() -> None:
    asked = (Message(role="user", content="a"),)
    one, other = (
        PreferencePair(prompt=asked, chosen="x", rejected="y"),
        PreferencePair(prompt=asked, chosen="z", rejected="y"),
    )
    assert questions_of_pairs([one]) == questions_of_pairs([other]) == ["a"]
