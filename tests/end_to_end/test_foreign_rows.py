"""A user's file in a foreign shape, from its rows to trained updates."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.end_to_end.running import SMALL, train

pytestmark = pytest.mark.engine


def test_two_updates_are_trained_on_rows_in_a_foreign_shape(tmp_path: Path, cache: Path) -> None:
    def written(name: str, seed: int, count: int) -> str:
        draw = random.Random(seed)
        numbers = ["".join(draw.sample("123456789", 5)) for _ in range(count)]
        rows = [
            {"meta": {"level": n % 4}, "puzzle": {"digits": one}, "golds": ["".join(sorted(one))]}
            for n, one in enumerate(numbers)
        ]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    trained_on = written("train.jsonl", 1, 64)
    shape = {
        "row": "tests.data.row_functions:from_puzzles", "filter": "level > 0", "template": "{{ puzzle.digits }}",
        "system_template": "Level {{ level }}.",
        "few_shot": {"k": 2, "path": trained_on, "reply": "<think>.</think>{{ answer }}"},
    }  # fmt: skip
    data = {"train": {"path": trained_on, **shape}, "eval": {"path": written("eval.jsonl", 2, 16), **shape}}
    parts = {"form": {"kind": "format", "tags": ["think"], "text_after": True}, "right": {"kind": "math"}}
    run = train(
        tmp_path / "run", cache, *SMALL[:3], "cluster.kind=local", "trainer.updates=2", f"data={json.dumps(data)}",
        f"reward={json.dumps({'kind': 'combined', 'parts': parts})}",
    )  # fmt: skip
    trained = [one for one in run.episodes if one.outcome == "trained"]
    assert len(trained) == 64
    for one in trained:
        assert set(one.reward_parts) == {"form", "right"}
        assert one.reward_parts["right"] == (one.response.strip() == one.answer)
