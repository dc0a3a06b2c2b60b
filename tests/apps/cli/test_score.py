"""`rlhf score` on files as people have them."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf.apps.cli.score import ScoreTotals, scored_row
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.reward.server import RewardServerSettings, reward_app
from rlhf.types import Scored, Unscored
from tests.apps.cli.conftest import Command
from tests.servers import running


def test_rows_that_were_scored_before_lose_the_earlier_verdict():
    row = {"response": "4", "reward": 1.0, "error": "old"}
    assert scored_row(row, Unscored(kind="timeout", detail="killed")) == {"response": "4", "error": "timeout: killed"}
    assert scored_row(row, Scored(value=0.5, parts={"exact": 0.5})) == {"response": "4", "reward": 0.5}


def test_the_parts_of_a_combined_reward_are_shown():
    score, tally = Scored(value=1.5, parts={"form": 1.0, "right": 0.5}), ScoreTotals()
    row = scored_row({"response": "4"}, score)
    assert row == {"response": "4", "reward": 1.5, "reward_parts": {"form": 1.0, "right": 0.5}}
    assert scored_row(row, Unscored(kind="timeout")) == {"response": "4", "error": "timeout: "}
    tally.add(score)
    assert tally.summary(1.0).startswith("1 rows: mean reward 1.5000 (form 1.0000, right 0.5000), 0 errors")


def test_a_reply_without_a_number_is_no_part_of_the_mean():
    tally = ScoreTotals()
    assert tally.summary(1.0) == "0 rows: no reward, 0 errors, 0 rows/s"
    for score in (Scored(value=0.5), Unscored(kind="timeout"), Scored(value=1.0)):
        tally.add(score)
    assert tally.summary(2.0) == "3 rows: mean reward 0.7500, 1 errors (most often timeout), 2 rows/s"


def test_the_file_that_is_scored_is_not_written_over(rlhf: Command, recipe: Path, tmp_path: Path):
    replies = tmp_path / "replies.jsonl"
    row = json.dumps({"question": "1 + 1?", "answer": "2", "response": "2"}) + "\n"
    replies.write_text(row, encoding="utf-8-sig")  # with a mark of byte order
    ended = rlhf("score", recipe, replies, "-o", replies)
    assert ended.returncode == 2
    assert "is the file to score" in ended.stderr
    assert "response" in replies.read_text()
    assert rlhf("score", recipe, replies, "-o", tmp_path / "scored.jsonl").returncode == 0
    assert json.loads((tmp_path / "scored.jsonl").read_text())["reward"] == 1.0
    replies.write_text(row.replace("?", "é"), encoding="latin-1")
    assert "replies.jsonl, line 1: byte 0xe9 is not UTF-8" in rlhf("score", recipe, replies).stderr


def test_reference_answers_are_scored_against_themselves(rlhf: Command, recipe: Path, rows: Path, tmp_path: Path):
    golds = ["5", "pi/2", "3 hours 20 minutes", "", "\\frac{1}{2}", "1, 2, \\ldots, 10"]
    rows.write_text("".join(json.dumps({"question": "?", "answer": gold}) + "\n" for gold in golds))
    told = (
        "3 of {} cannot be scored against themselves, so their rows have no reward: "
        "'3 hours 20 minutes', '', '1, 2, \\\\ldots, 10'"
    )
    held_out = (f"data.eval.path={rows}", "data.eval.limit=1")
    checked = rlhf("check", recipe, "reward.kind=math", *held_out)
    assert f"gold answers   {told.format(7)}\n" in checked.stdout
    scored = rlhf("score", recipe, rows, "reward.kind=math", "--gold")
    assert f"gold answers: {told.format(6)}\n" in scored.stderr
    assert [json.loads(line).get("reward") for line in scored.stdout.splitlines()] == [1.0, 1.0, None, None, 1.0, None]
    assert rlhf("score", recipe, rows, "reward.kind=code", "--gold").returncode == 2


def test_a_reward_model_is_not_asked_about_texts(rlhf: Command, recipe: Path, tmp_path: Path):
    replies = tmp_path / "replies.jsonl"
    replies.write_text(json.dumps({"question": "1 + 1?", "answer": "2", "response": "2"}) + "\n")
    ended = rlhf("score", recipe, replies, "reward.kind=model", "reward.model=somebody/judge")
    assert ended.returncode == 2
    assert "scores the tokens that an engine sampled, not texts" in ended.stderr


def test_a_reward_server_is_sent_what_was_asked(rlhf: Command, recipe: Path, tmp_path: Path):
    replies = tmp_path / "replies.jsonl"
    replies.write_text(json.dumps({"question": "1 + 1?", "answer": "2", "response": "2"}) + "\n")
    exact = reward_app(make_reward(RewardConfig()), RewardServerSettings(name="exact"))
    with running(exact) as url:
        keys = ("reward.kind=remote", f"reward.remote.url={url}", "reward.remote.api=slime")
        ended = rlhf(
            "score", recipe, replies, *keys, f"reward.recording.path={tmp_path}/tape", "reward.recording.mode=record"
        )
    assert json.loads(ended.stdout)["reward"] == 1.0
    assert '"prompt": "1 + 1?"' in (tmp_path / "tape").read_text()
    replayed = rlhf("score", recipe, replies, *keys, f"reward.recording.path={tmp_path}/tape")
    assert replayed.stdout == ended.stdout
    replies.write_text(json.dumps({"question": "1 + 2?", "answer": "3", "response": "3"}) + "\n")
    another = rlhf("score", recipe, replies, *keys, f"reward.recording.path={tmp_path}/tape")
    assert another.returncode == 2
    assert "no answer left" in another.stderr


def test_a_token_or_a_recording_that_is_not_there_is_known_before_anything_starts(rlhf: Command, recipe: Path):
    remote = ("reward.kind=remote", "reward.remote.url=http://127.0.0.1:9")
    ended = rlhf("check", recipe, *remote, "reward.remote.token_env=NO_SUCH_TOKEN")
    assert ended.returncode == 2
    assert "NO_SUCH_TOKEN must hold a token, but is empty" in ended.stderr
    ended = rlhf("check", recipe, *remote, "reward.recording.path=nowhere.jsonl")
    assert ended.returncode == 2
    assert "no such recording" in ended.stderr
