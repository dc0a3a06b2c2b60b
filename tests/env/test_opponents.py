"""Opponents are named in a setting, and what names none is refused in one line."""

from __future__ import annotations

import random
from typing import Any

import pytest

from recipes.tasks.tictactoe import at_random
from rlhf.env.opponents import OpponentSetting, opponent_of
from rlhf.errors import ConfigError
from rlhf.types import Task

TASK = Task(id="0", messages=())
KNOWN = {"random": at_random}


def replies(setting: OpponentSetting, *shown: str, seed: int = 0) -> list[str]:
    opponent = opponent_of(setting, KNOWN)
    assert opponent is not None
    player = opponent.seat(TASK, random.Random(seed))
    return [player(text) for text in shown]


@pytest.mark.parametrize("setting", [None, "self"])
def test_without_an_opponent_the_policy_plays_itself(setting: OpponentSetting) -> None:
    assert opponent_of(setting, KNOWN) is None


@pytest.mark.parametrize("setting", ["random", "recipes.tasks.tictactoe:at_random"])
def test_a_function_is_named_by_the_game_or_by_its_module(setting: str) -> None:
    assert replies(setting, "x3o") == ["3"]
    assert replies(setting, *["123456789"] * 9, seed=1) == replies(setting, *["123456789"] * 9, seed=1)


def test_a_script_begins_again_after_its_last_reply_and_in_every_game() -> None:
    script = {"kind": "script", "replies": ["[1]", "[2]"]}
    assert replies(script, "a", "b", "c") == ["[1]", "[2]", "[1]"]
    assert replies(script, "a") == ["[1]"]


def test_any_of_the_moves_that_the_game_lists_last() -> None:
    listed = {"kind": "listed", "pattern": r"\[\d\]", "after": "Moves:"}
    shown = "Moves: [0] [1] then Moves: [7] [8]"
    assert {replies(listed, shown, seed=seed)[0] for seed in range(20)} == {"[7]", "[8]"}
    with pytest.raises(ValueError, match="matches no move"):
        replies(listed, "Moves: none")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("me", "opponent is me; write self, random, module:function, or a mapping with kind: chat, script, listed"),
        ({"url": "http://127.0.0.1:8000/v1"}, "opponent.kind is None; write chat, script, listed"),
        ({"kind": "chat", "url": "127.0.0.1", "model": "m"}, "opponent: url: "),
        ({"kind": "chat", "url": "http://127.0.0.1:8000/v1"}, "opponent: model is required"),
        ({"kind": "chat", "url": "http://h/v1", "model": "m", "temprature": 1}, "did you mean 'temperature'"),
        ({"kind": "script", "replies": []}, "opponent: replies: "),
        ({"kind": "listed", "pattern": "["}, "opponent: pattern: not a regular expression"),
    ],
)
def test_what_names_no_opponent_is_refused(setting: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        opponent_of(setting, KNOWN)
