"""What is sent is the wire of others, and what is no number is never one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlhf.chat.image_reader import noise_image
from rlhf.images import IMAGE_MARK
from rlhf.reward.config import RemoteConfig
from rlhf.reward.wire import SHAPES, conversation_text, parse_number, scores
from rlhf.types import EpisodeStatus, Message, Segment, Task, ToolCall, Trajectory, Unscored

TASK = Task(id="t", messages=(Message(role="user", content="6*7="),), answer="42")


def segment(*ids: int) -> Segment:
    zeros = np.zeros(len(ids))
    return Segment(
        token_ids=np.array(ids, np.int32),
        kinds=zeros.astype(np.int8),
        behaviour_logprobs=zeros.astype(np.float32),
        versions=zeros.astype(np.int32),
    )


def episode(response: str, *segments: Segment) -> Trajectory:
    return Trajectory(task=TASK, segments=segments, status=EpisodeStatus.TERMINATED, response=response)


EPISODES = [episode("42", segment(1, 2), segment(5, 6)), episode("41", segment(5, 7))]


def sent(shape: str, **config: Any) -> list[tuple[str, Any]]:
    remote = RemoteConfig(url="http://h", api=shape, **config)  # type: ignore[arg-type]
    return [(exchange.path, dict(exchange.body)) for exchange in SHAPES[shape].ask(TASK, EPISODES, remote)]


def test_openrlhf_is_sent_whole_texts_prompts_and_labels() -> None:
    body = {"query": ["6*7=42", "6*7=41"], "prompts": ["6*7="] * 2, "labels": ["42"] * 2}
    assert sent("openrlhf") == [("/get_reward", body)]


def test_slime_is_sent_one_reply_at_a_time() -> None:
    assert sent("slime") == [
        ("/", {"prompt": "6*7=", "response": response, "label": "42"}) for response in ("42", "41")
    ]


@pytest.mark.parametrize("shape", ["vllm_classify", "vllm_pooling"])
def test_vllm_is_never_left_to_its_sigmoid(shape: str) -> None:
    ((path, body),) = sent(shape, model="rm")
    assert path == shape.replace("vllm_", "/")
    assert body == {"model": "rm", "input": ["6*7=42", "6*7=41"], "use_activation": False}
    assert sent("vllm_score")[0][1]["use_activation"] is False


def test_vllm_may_be_sent_the_tokens_that_were_sampled_of_the_last_context() -> None:
    assert sent("vllm_classify", sends="tokens")[0][1]["input"] == [[5, 6], [5, 7]]


def test_score_is_sent_the_prompt_once() -> None:
    ((path, body),) = sent("vllm_score")
    assert path == "/score"
    assert (body["text_1"], body["text_2"]) == ("6*7=", ["42", "41"])


@pytest.mark.parametrize(
    ("shape", "answer"),
    [
        ("openrlhf", {"rewards": [1, -0.5], "scores": [9, 9], "extra_logs": {}}),
        ("vllm_classify", {"data": [{"index": 0, "probs": [1.0]}, {"index": 1, "probs": [-0.5]}]}),
        ("vllm_pooling", {"data": [{"index": 0, "data": [1.0]}, {"index": 1, "data": [-0.5]}]}),
        ("vllm_score", {"data": [{"index": 0, "score": 1.0}, {"index": 1, "score": -0.5}]}),
    ],
)
def test_every_shape_is_read(shape: str, answer: Any) -> None:
    assert scores(SHAPES[shape], answer, 2) == [1.0, -0.5]


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e999", '"1.0"', "null", "true", "[1.0]", "{}", "1" + "0" * 400]
)
def test_what_is_no_finite_number_is_unscored_and_its_neighbour_is_not(value: str) -> None:
    bad, good = scores(SHAPES["openrlhf"], json.loads(f'{{"rewards": [{value}, 0.25]}}'), 2)
    assert isinstance(bad, Unscored)
    assert bad.kind == "protocol"
    assert good == 0.25


@pytest.mark.parametrize(
    ("shape", "answer"),
    [
        ("openrlhf", {"rewards": [1.0]}),
        ("openrlhf", {"rewards": [1.0, 2.0, 3.0]}),
        ("openrlhf", {"rewards": 1.0}),
        ("openrlhf", {"rewards": None}),
        ("openrlhf", {"scores": [1.0, 2.0]}),
        ("openrlhf", [1.0, 2.0]),
        ("openrlhf", {"rewards": [1.0, 2.0], "unscored": ["?"]}),
        ("openrlhf", {"rewards": [1.0, 2.0], "unscored": 7}),
        ("openrlhf", {"rewards": [1.0, 2.0], "unscored": [{"index": 9, "kind": "k", "detail": "d"}]}),
        ("vllm_classify", {"data": [{"index": 0, "probs": [0.1, 0.9]}, {"index": 1, "probs": [0.1, 0.9]}]}),
        ("vllm_classify", {"data": [{"index": 1, "probs": [1.0]}, {"index": 0, "probs": [1.0]}]}),
        ("vllm_classify", {"data": [1.0, 2.0]}),
        ("vllm_pooling", {"data": [{"index": 0, "data": [[1.0]]}, {"index": 1, "data": []}]}),
        ("vllm_score", {"error": {"message": "no such model"}}),
        ("slime", {"reward": 1.0}),
    ],
)
def test_an_answer_of_another_shape_scores_nobody(shape: str, answer: Any) -> None:
    count = 1 if shape == "slime" else 2
    found = scores(SHAPES[shape], answer, count)
    assert [score.kind for score in found if isinstance(score, Unscored)] == ["protocol"] * count


def test_a_failure_that_our_server_names_keeps_its_name() -> None:
    answer = {"rewards": [None, 1.0], "unscored": [{"index": 0, "kind": "timeout", "detail": "killed"}]}
    assert scores(SHAPES["openrlhf"], answer, 2) == [Unscored(kind="timeout", detail="killed"), 1.0]


def test_a_number_is_a_number() -> None:
    assert [parse_number(value) for value in (0, 1, -2.5, 10**15)] == [0.0, 1.0, -2.5, 1e15]


def test_a_single_message_is_its_text_and_a_chat_names_its_roles() -> None:
    system, user = Message(role="system", content="Be brief."), Message(role="user", content="6*7?")
    assert conversation_text((user,)) == "6*7?"
    shown = Message(role="user", content=f"{IMAGE_MARK}dark?", images=(noise_image((30, 20)),))
    assert conversation_text((shown,)) == "[image 30x20]dark?"
    assert conversation_text((system, shown)) == "system: Be brief.\n\nuser: [image 30x20]dark?"
    assert conversation_text((system, user)) == "system: Be brief.\n\nuser: 6*7?"


def test_of_several_turns_everything_before_the_last_reply_is_the_prompt() -> None:
    call = ToolCall(id="c", name="add", arguments={"a": 6})
    turns = (
        *TASK.messages,
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="42", tool_call_id="c"),
        Message(role="assistant", content="so 42"),
    )
    played = [replace(EPISODES[0], conversation=turns, response="so 42"), EPISODES[1]]
    before = 'user: 6*7=\n\nassistant: add({"a": 6})\n\ntool: 42'
    ask = {api: SHAPES[api].ask(TASK, played, RemoteConfig(url="http://h", api=api)) for api in SHAPES}
    assert ask["openrlhf"][0].body["query"] == [f"{before}so 42", "6*7=41"]
    assert ask["slime"][0].body["prompt"] == before
    assert ask["vllm_classify"][0].body["input"] == [f"{before}so 42", "6*7=41"]
    assert ask["vllm_score"][0].body["text_1"] == [before, "6*7="]
