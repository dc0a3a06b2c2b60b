"""Rows that are not asked are counted and told; what is left is never empty, and holds each problem once."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.data.config import DatasetConfig
from rlhf.data.selection import distinct, of_right_length
from rlhf.data.sources import load_tasks
from rlhf.errors import DataError
from rlhf.types import Message, Task


def task(text: str, answer: str | None = "a", name: str = "") -> Task:
    return Task(id=name or text, messages=(Message(role="user", content=text),), answer=answer)


TASKS = [task("x" * length) for length in (1, 5, 5, 9, 20)]


def characters(one: Task) -> int:
    return len(one.messages[-1].content)


def select(**limits: Any) -> tuple[list[int], str]:
    told = list[str]()
    chosen = of_right_length(TASKS, DatasetConfig(path="x", **limits), characters, "data.train", told.append)
    return [characters(one) for one in chosen], "".join(told)


def test_prompts_that_are_too_long_or_too_short_are_left_out_and_counted() -> None:
    assert select(max_prompt_tokens=9) == ([1, 5, 5, 9], "data.train: 1 of 5 rows left out (1 above 9 prompt tokens)")
    assert select(min_prompt_tokens=5, max_prompt_tokens=5) == (
        [5, 5],
        "data.train: 3 of 5 rows left out (1 below 5 prompt tokens, 2 above 5 prompt tokens)",
    )


def test_a_dataset_of_which_nothing_is_left_is_refused_with_its_lengths() -> None:
    with pytest.raises(DataError, match=r"5 of 5 rows left out \(5 below 21 .*; prompts have 1 to 20 tokens"):
        select(min_prompt_tokens=21)


def test_limits_that_no_prompt_can_meet_are_refused_by_the_recipe() -> None:
    with pytest.raises(ValueError, match=r"min_prompt_tokens \(6\) is above max_prompt_tokens \(5\)"):
        DatasetConfig(path="x", min_prompt_tokens=6, max_prompt_tokens=5)


def test_a_problem_that_comes_twice_is_evaluated_once() -> None:
    told = list[str]()
    tasks = [task("1+1", "2", "r0"), task("2+2", "4", "r1"), task("1+1", "2", "r2")]
    chosen = distinct(tasks, "data.eval", told.append)
    assert [one.id for one in chosen] == ["r0", "r1"]
    assert distinct(chosen, "data.eval", told.append) == chosen
    assert told == ["data.eval: 1 of 3 rows repeat a problem; each is evaluated once"]


def test_one_prompt_with_two_answers_is_refused_with_both_rows() -> None:
    with pytest.raises(DataError, match=r"data\.eval: r0 and r1 have the same prompt and different answers"):
        distinct([task("1+1", "2", "r0"), task("1+1", "3", "r1")], "data.eval", print)


def test_what_an_environment_will_ask_is_another_problem_for_every_seed() -> None:
    tasks = load_tasks(DatasetConfig(seeds=5))
    assert len({one.id for one in tasks}) == 5
    assert distinct(tasks, "data.eval", print) == tasks
