"""`rlhf reward check` finds what a reward accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.apps.cli.reward_check import run_reward_check
from rlhf.errors import UserError
from rlhf.reward.adversarial import LONG, Quiz, adversarial_replies

QUIZ = Quiz(prompt="What is 6 times 7?", answer="42", wrong=("41", "43"))


def accepted(out: str) -> set[str]:
    return {line[:42].strip() for line in out.splitlines() if line.endswith("ACCEPTED")}


def test_a_strict_rule_accepts_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_reward_check("exact") == 0
    assert "0 of 33 hostile replies are accepted" in capfd.readouterr().out


def test_a_rule_that_looks_anywhere_accepts_whoever_lists_everything(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_reward_check("tests.reward.gullible:contains") == 1
    found = accepted(capfd.readouterr().out)
    assert {"every option listed", "right answer negated", "right answer within 100 kB", "null bytes"} <= found
    assert not {"empty", "tags only", "the prompt repeated", "look-alikes"} & found


def test_a_rule_that_reads_unicode_digits_accepts_look_alikes(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_reward_check("tests.reward.gullible:as_number") == 1
    assert accepted(capfd.readouterr().out) == {"look-alikes"}


def test_a_reply_that_breaks_the_scorer_is_not_accepted(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_reward_check("tests.reward.gullible:fragile") == 0
    assert "no number (raised)" in capfd.readouterr().out


def test_a_reward_that_does_not_tell_right_from_wrong_says_what_to_do() -> None:
    with pytest.raises(UserError, match="give the form of an answer with --reply"):
        run_reward_check("regex", [r"pattern='####\s*(\d+)'"])


def test_a_function_reads_the_columns_of_a_recipes_rows(
    recipe: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows.write_text('{"question": "7 x 6?", "answer": "42", "level": 3}\n')
    (tmp_path / "leveled.py").write_text("def score(response, row): return row['level'] * (response == row['answer'])")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run_reward_check(str(recipe), ["reward={kind: function, function: leveled:score}"]) == 0
    assert "the right answer                          3\n" in capfd.readouterr().out
    with pytest.raises(UserError, match=r"KeyError: 'level'.*name a recipe with rows"):
        run_reward_check("leveled:score")


def test_a_function_that_is_elsewhere_is_told_before_a_process_starts() -> None:
    with pytest.raises(UserError, match="REWARD is absent:reward, but there is no module absent in this folder"):
        run_reward_check("absent:reward")


def test_a_recipes_reward_is_checked(recipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        run_reward_check(str(recipe), [r"reward.kind=regex", r"reward.pattern='####\s*(\d+)'"], reply="#### {answer}")
        == 1
    )
    assert "hedged" in accepted(capfd.readouterr().out)


def test_the_corpus_is_what_it_says() -> None:
    replies = adversarial_replies(QUIZ)
    assert replies == adversarial_replies(QUIZ)
    assert replies["empty"] == ""
    assert replies["the prompt repeated"] == QUIZ.prompt
    assert len(replies["100 kB of one letter"]) == LONG
    assert all(option in replies["every option listed"] for option in ("41", "42", "43"))
    assert replies["many boxed answers"].count("\\boxed{") == 3
    assert QUIZ.answer not in replies["look-alikes"]
    assert QUIZ.answer not in replies.values()
