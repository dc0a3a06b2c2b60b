"""Reward functions as users of TRL, verl, verifiers and OpenRLHF write them, from their file to trained updates."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.end_to_end.running import SMALL, train

pytestmark = pytest.mark.engine

FUNCTIONS = ("trl_correct", "verl", "verifiers", "reward_func", "diversity")


def test_two_updates_are_trained_on_the_functions_of_four_projects(tmp_path: Path, cache: Path) -> None:
    numbers = ["".join(random.Random(seed).sample("123456789", 5)) for seed in range(64)]
    rows = [{"question": one, "answer": "".join(sorted(one)), "data_source": "gsm8k"} for one in numbers]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward = [{"function": f"tests.reward.users_rewards:{name}"} for name in FUNCTIONS]
    data = {"train": {"path": str(file)}, "eval": {"path": str(file), "trained_on": True}}
    run = train(
        tmp_path / "run", cache, *SMALL[:3], "cluster.kind=local", "trainer.updates=2",
        f"data={json.dumps(data)}", f"reward={json.dumps(reward)}",
    )  # fmt: skip
    trained = [one for one in run.episodes if one.outcome == "trained"]
    assert len(trained) == 64
    for one in trained:
        right = one.response == one.answer
        assert one.reward_parts["verl"] == one.reward_parts["verifiers"] == one.reward_parts["reward_func"] == right
        assert 0.25 <= one.reward_parts["diversity"] <= 1
