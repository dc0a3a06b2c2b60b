"""Wire formats of existing reward servers: requests for a group, and parsing of their responses into scores. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.images import shown_text
from rlhf.reward.config import RemoteConfig
from rlhf.types import Message, Task, Trajectory, Unscored, is_finite

NULLS_HEADER = "X-Unscored"
"""A client that sends this field (with the value `null`) gets `null` for a reply that our server could not score, and
the reason in `unscored`. Without it the whole request fails: clients would take any placeholder for a number."""
Score = float | Unscored
Ask = Callable[[Task, Sequence[Trajectory], RemoteConfig], "list[ScoringRequest]"]
"""Makes the requests for a group."""
KIND_LENGTH, DETAIL_LENGTH = 40, 1000
"""Maximum lengths of a server's kind and reason for a reply that it could not score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """One request, and how many scores its response must contain."""

    path: str
    body: Mapping[str, Any]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The format of one kind of server. `read` raises `ValueError` for a response that does not match the format."""

    ask: Ask
    read: Callable[[Any], Sequence[Any]]


def conversation_text(messages: Sequence[Message]) -> str:
    """Return messages as plain text: a single one unchanged, several with their roles in front."""
    if len(messages) == 1:
        return shown_text(messages[0].content, messages[0].images)
    return "\n\n".join(f"{message.role}: {message_text(message)}" for message in messages)


def text_before(episode: Trajectory) -> str:
    """Return what the last reply answers, as plain text: the task, and the turns before it, if there were any."""
    replies = [place for place, message in enumerate(episode.conversation) if message.role == "assistant"]
    return conversation_text(episode.conversation[: replies[-1]] if replies else episode.task.messages)


def message_text(message: Message) -> str:
    """Return a message's text, with the size of each image in its place, and its tool calls."""
    content = shown_text(message.content, message.images)
    calls = [f"{call.name}({json.dumps(dict(call.arguments), ensure_ascii=False)})" for call in message.tool_calls]
    return "\n".join([content, *calls] if content else calls)


def scores(shape: Shape, answer: Any, count: int) -> list[Score]:
    """Return a response as `count` scores; values that are not finite numbers become `Unscored("protocol")`."""
    try:
        values = shape.read(answer)
    except ValueError as error:
        return [Unscored(kind="protocol", detail=str(error))] * count
    if len(values) != count:
        return [Unscored(kind="protocol", detail=f"{len(values)} scores for {count} replies")] * count
    return [value if isinstance(value, Unscored) else parse_number(value) for value in values]


def parse_number(value: Any) -> Score:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Unscored(kind="protocol", detail=f"{type(value).__name__} where a number was expected")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    return found if is_finite(found) else Unscored(kind="protocol", detail=f"{found} where a number was expected")


def _ask_openrlhf(task: Task, episodes: Sequence[Trajectory], config: RemoteConfig) -> list[ScoringRequest]:
    prompts, count = [text_before(episode) for episode in episodes], len(episodes)
    query = [prompt + episode.response for prompt, episode in zip(prompts, episodes, strict=True)]
    body = {"query": query, "prompts": prompts, "labels": [task.answer] * count}
    return [ScoringRequest(path="/get_reward", body=body, count=count)]


def _read_openrlhf(answer: Any) -> Sequence[Any]:
    rewards = list(_list_at(answer, "rewards"))
    for lost in _list_at(answer, "unscored") if "unscored" in answer else ():
        match lost:
            case {"index": int(index), "kind": str(kind), "detail": str(detail)} if 0 <= index < len(rewards):
                rewards[index] = Unscored(kind=kind[:KIND_LENGTH], detail=detail[:DETAIL_LENGTH])
            case _:
                raise ValueError("'unscored' must be a list of index, kind and detail")
    return rewards


def _ask_slime(task: Task, episodes: Sequence[Trajectory], config: RemoteConfig) -> list[ScoringRequest]:
    bodies = [{"prompt": text_before(one), "label": task.answer, "response": one.response} for one in episodes]
    return [ScoringRequest(path="/", body=body, count=1) for body in bodies]


def _ask_vllm_input(path: str) -> Ask:
    def ask(task: Task, episodes: Sequence[Trajectory], config: RemoteConfig) -> list[ScoringRequest]:
        given: list[Any] = [text_before(episode) + episode.response for episode in episodes]
        if config.sends == "tokens":
            given = [episode.segments[-1].token_ids.tolist() if episode.segments else [] for episode in episodes]
        # By default vLLM applies a sigmoid to a single score, which hides differences between good replies.
        body = {"model": config.model, "input": given, "use_activation": False}
        return [ScoringRequest(path=path, body=body, count=len(given))]

    return ask


def _ask_vllm_score(task: Task, episodes: Sequence[Trajectory], config: RemoteConfig) -> list[ScoringRequest]:
    replies = [episode.response for episode in episodes]
    asked = [text_before(episode) for episode in episodes]
    prompts = asked if len(set(asked)) > 1 else asked[0]  # vLLM pairs one text, or as many as there are replies
    body = {"model": config.model, "text_1": prompts, "text_2": replies, "use_activation": False}
    return [ScoringRequest(path="/score", body=body, count=len(replies))]


def _read_vllm(name: str, single: Callable[[Any], Any]) -> Callable[[Any], Sequence[Any]]:
    def read(answer: Any) -> Sequence[Any]:
        entries = _list_at(answer, "data")
        if not all(isinstance(entry, dict) and name in entry for entry in entries):
            raise ValueError(f"'data' must be a list of objects with {name!r}")
        if [entry.get("index") for entry in entries] != list(range(len(entries))):
            raise ValueError("the entries of 'data' are not in order of their index")
        return [single(entry[name]) for entry in entries]

    return read


def _only(values: Any) -> Any:
    """Return the number of a model with one label; anything else fails later as not a number."""
    return values[0] if isinstance(values, list) and len(values) == 1 else values


def _list_at(answer: Any, key: str) -> list[Any]:
    if not isinstance(answer, dict) or not isinstance(answer.get(key), list):
        raise ValueError(f"the answer must be an object with a list of {key!r}")
    found: list[Any] = answer[key]
    return found


SHAPES: Mapping[str, Shape] = {
    "openrlhf": Shape(ask=_ask_openrlhf, read=_read_openrlhf),
    "slime": Shape(ask=_ask_slime, read=lambda answer: [answer]),
    "vllm_classify": Shape(ask=_ask_vllm_input("/classify"), read=_read_vllm("probs", _only)),
    "vllm_pooling": Shape(ask=_ask_vllm_input("/pooling"), read=_read_vllm("data", _only)),
    "vllm_score": Shape(ask=_ask_vllm_score, read=_read_vllm("score", lambda value: value)),
}
