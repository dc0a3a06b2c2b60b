"""Datasets on disk become the order of training and the problems of an evaluation; what is left out is told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rlhf.config import build
from rlhf.data.config import DataConfig
from rlhf.data.tasks import held_out_problems, load_sets, mixed, training_tasks
from rlhf.types import Task


def written(path: Path, questions: list[str]) -> dict[str, str]:
    path.write_text("".join(json.dumps({"question": text, "answer": text.lower()}) + "\n" for text in questions))
    return {"path": str(path)}


def characters(task: Task) -> int:
    return len(task.messages[-1].content)


def trained(data: DataConfig, count: int, told: list[str]) -> list[str]:
    order = mixed(data, training_tasks(data, load_sets(data.train_sets), characters, told.append, seed=3), seed=3)
    return [order[ordinal].messages[-1].content for ordinal in range(count)]


def test_two_files_are_mixed_by_weight_and_rows_of_a_wrong_length_are_told(tmp_path: Path) -> None:
    few = written(tmp_path / "few.jsonl", ["AA", "AAAA", "A"])
    many = written(tmp_path / "many.jsonl", ["B" * n for n in range(1, 11)])
    told: list[str] = []
    train: list[dict[str, Any]] = [few | {"weight": 3, "max_prompt_tokens": 3}, many | {"weight": 1}]
    data = build(DataConfig, {"train": train})
    asked = trained(data, 40, told)
    assert Counter(text[0] for text in asked) == {"A": 30, "B": 10}
    assert set(asked) == {"AA", "A"} | {"B" * n for n in range(1, 11)}
    assert told == ["data.train.0: 1 of 3 rows left out (1 above 3 prompt tokens)"]


def test_every_evaluation_set_has_its_problems_once(tmp_path: Path) -> None:
    easy = written(tmp_path / "easy.jsonl", ["A", "B", "A"])
    hard = written(tmp_path / "hard.jsonl", ["CCC", "C"])
    told: list[str] = []
    data = build(DataConfig, {"train": easy, "eval": {"easy": easy, "hard": hard | {"min_prompt_tokens": 2}}})
    problems = held_out_problems(data, load_sets(data.eval_sets), characters, told.append, seed=3)
    assert {name: [task.answer for task in tasks] for name, tasks in problems.items()} == {
        "easy": ["a", "b"], "hard": ["ccc"],
    }  # fmt: skip
    assert told == [
        "data.eval.easy: 1 of 3 rows repeat a problem; each is evaluated once",
        "data.eval.hard: 1 of 2 rows left out (1 below 2 prompt tokens)",
    ]
