"""An episode in the formats of others has every turn once, with what the policy had read before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhf.errors import DataError
from rlhf.runs.episode_parts import read_episodes, write_part
from rlhf.runs.interchange import training_trace, trajectory
from tests.runs.test_episode_parts import PLAYED

TURN = {"reward": None, "terminated": False, "truncated": False, "message": None}
CALLING = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "name": "add", "arguments": {"x": 1}}]}
WITH_SIDE_CALL = replace(
    PLAYED,
    token_ids=np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], np.int32),
    kinds=np.array([0, 3, 2, 3, 0, 1, 2, 2, 1], np.int8),
    behaviour_logprobs=np.array([np.nan, -2, np.nan, -4, np.nan, 2**-20, np.nan, np.nan, -9], np.float32),
    versions=np.array([-1, 0, -1, 1, -1, 1, -1, -1, 2], np.int32),
    segment_lengths=[4, 5],
    segment_threads=["side", "main"],
    turns=[
        TURN | {"segment": 0, "start": 1, "stop": 2},
        TURN | {"segment": 0, "start": 3, "stop": 4},
        TURN | {"segment": 1, "start": 1, "stop": 2, "message": 1},
        TURN | {"segment": 1, "start": 4, "stop": 5, "message": 4, "reward": 1.0, "terminated": True},
    ],
    conversation=[
        {"role": "user", "content": "1+?"},
        CALLING,
        {"role": "tool", "content": "2", "tool_call_id": "a"},
        {"role": "assistant", "content": "so to say"},
        {"role": "assistant", "content": "3"},
    ],
)
"""A side call of two turns, and a main conversation of two, in which the agent puts words into the policy's mouth."""


def test_the_ids_of_calls_and_results_come_back_from_a_file(tmp_path: Path) -> None:
    write_part(tmp_path, 1, [WITH_SIDE_CALL])
    [back] = read_episodes(tmp_path)
    assert back.conversation == WITH_SIDE_CALL.conversation


def text_of(*tokens: int) -> str:
    return "".join(map(str, tokens))


def test_a_trace_has_the_tokens_of_each_turn_and_trains_only_what_was_trained() -> None:
    turns = training_trace(WITH_SIDE_CALL)["turns"]
    columns = ("node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask")
    assert [tuple(turn[name] for name in columns) for turn in turns] == [
        ("segment 0 token 1", [1], [2], [-2.0], [0, 0]),
        ("segment 0 token 3", [1, 2, 3], [4], [-4.0], [0, 0, 0, 0]),
        ("message 1", [5], [6], [0.0], [0, 1]),
        ("message 4", [5, 6, 7, 8], [9], [-9.0], [0, 0, 0, 0, 1]),
    ]  # fmt: skip
    assert turns[-1]["metadata"]["episode"] == "3.1"
    assert turns[-1]["metadata"]["turn_reward"] == 1.0


def test_a_trajectory_has_a_step_for_each_message_and_a_subagent_for_side_calls() -> None:
    document = trajectory(WITH_SIDE_CALL, text_of)
    user, calling, copied, last = document["steps"]
    assert (user["source"], user["message"], user["step_id"]) == ("user", "1+?", 1)
    assert calling["tool_calls"] == [{"tool_call_id": "a", "function_name": "add", "arguments": {"x": 1}}]
    assert calling["observation"] == {"results": [{"content": "2", "source_call_id": "a"}]}
    assert calling["metrics"]["completion_token_ids"] == [6]
    assert "metrics" not in copied
    assert copied["is_copied_context"]
    assert (last["metrics"]["prompt_token_ids"], last["extra"]) == ([5, 6, 7, 8], {"reward": 1.0})
    assert document["final_metrics"] == {"total_prompt_tokens": 5, "total_completion_tokens": 2, "total_steps": 4}
    [beside] = document["subagent_trajectories"]
    assert (beside["trajectory_id"], beside["extra"]) == ("3.1.0", {"kind": "side"})
    assert [(step["source"], step["message"]) for step in beside["steps"]] == [
        ("user", "1"), ("agent", "2"), ("user", "3"), ("agent", "4"),
    ]  # fmt: skip


def test_without_a_conversation_the_reply_follows_the_prompt() -> None:
    turns = [{**turn, "message": None} for turn in PLAYED.turns or ()]
    asked, replied = trajectory(replace(PLAYED, conversation=None, turns=turns), text_of)["steps"]
    assert (asked["message"], replied["message"]) == ("6*7?", "42")
    assert replied["metrics"]["completion_token_ids"] == [8, 151_000]


def test_a_record_that_does_not_say_which_message_a_turn_is_makes_no_trajectory() -> None:
    old = replace(PLAYED, turns=[TURN | {"segment": 0, "start": 1, "stop": 3}])
    with pytest.raises(DataError, match=r"episode 3\.1 is of a version"):
        trajectory(old, text_of)
