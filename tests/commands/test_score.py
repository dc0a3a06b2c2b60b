"""`rlhf score` on files as people have them."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf.commands.score import judged
from rlhf.types import Scored, Unscored
from tests.commands.conftest import Command


def test_rows_that_were_scored_before_lose_the_earlier_verdict():
    row = {"response": "4", "reward": 1.0, "error": "old"}
    assert judged(row, Unscored(kind="timeout", detail="killed")) == {"response": "4", "error": "timeout: killed"}
    assert judged(row, Scored(value=0.5)) == {"response": "4", "reward": 0.5}


def test_the_file_that_is_scored_is_not_written_over(rlhf: Command, recipe: Path, tmp_path: Path):
    replies = tmp_path / "replies.jsonl"
    replies.write_text(json.dumps({"question": "1 + 1?", "answer": "2", "response": "2"}) + "\n")
    ended = rlhf("score", recipe, replies, "-o", replies)
    assert ended.code == 2
    assert "being scored" in ended.err
    assert "response" in replies.read_text()
    assert rlhf("score", recipe, replies, "-o", tmp_path / "scored.jsonl").code == 0
    assert json.loads((tmp_path / "scored.jsonl").read_text())["reward"] == 1.0


def test_a_reward_model_is_not_asked_about_texts(rlhf: Command, recipe: Path, tmp_path: Path):
    replies = tmp_path / "replies.jsonl"
    replies.write_text(json.dumps({"question": "1 + 1?", "answer": "2", "response": "2"}) + "\n")
    ended = rlhf("score", recipe, replies, "reward.kind=model", "reward.model=somebody/judge")
    assert ended.code == 2
    assert "scores the tokens that an engine sampled, not texts" in ended.err
