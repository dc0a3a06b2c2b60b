"""How a reward function is called, recognised by the names of its parameters. Standard library only.

    (response, row)                                        ours; further parameters by name, see `Episode`
    (batch)                                                ours: all episodes of a group, a list of `Episode`
    (prompts, completions, completion_ids, **columns)      TRL: lists over a group
    (data_source, solution_str, ground_truth, extra_info)  verl
    (prompt, completion, answer, state, …)                 rubrics of verifiers
    (queries, prompts, labels)                             OpenRLHF: lists over a group

Any of them may be a coroutine function: then the episodes of a group are awaited together.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

Fields = dict[str, Any]
Given = Callable[[Any], Fields]
"""Makes the arguments of a call from an episode, or from a group of them."""
DOES_NOT_APPLY = "does not apply"
"""Kind of a missing score that leaves a reply to the other parts of a combination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What a reward function may ask for by the name of a parameter."""

    response: str
    """The last reply, as text."""
    row: Fields
    """The row of the dataset."""
    answer: str | None = None
    """The reference answer, as `answer_column` and `answer_pattern` say."""
    prompt: list[Fields] = field(default_factory=list)
    """The messages of the task, in OpenAI's form."""
    messages: list[Fields] = field(default_factory=list)
    """The whole conversation: the task, every reply with its tool calls, and every answer to it."""
    completion_ids: list[int] = field(default_factory=list)
    """The sampled tokens of all replies."""
    truncated: bool = False
    """Whether a limit cut the episode off."""
    turns: int = 1
    """Number of replies."""
    role: str = "agent"
    """The role that the policy played."""
    env_info: list[Fields] = field(default_factory=list)
    """The `info` of every observation of the environment, in order."""
    state: Fields = field(default_factory=dict)
    """The `info` of the last one."""
    group: list[str] = field(default_factory=list)
    """The last replies of all episodes of the group with the same role, this one's included."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """The scores of the other parts of a combined reward, before weighting."""


VERIFIERS = {"prompt", "completion", "answer", "state", "info", "task"}
BY_NAME = tuple(one.name for one in fields(Episode) if one.name not in ("response", "row"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """`call` takes the episodes of a group where it is `grouped`, else one, and returns a value for each; an awaitable
    of them if it `waits`. `wants` are the fields beyond response and row that it reads."""

    name: str
    wants: tuple[str, ...]
    grouped: bool
    waits: bool
    call: Callable[[Sequence[Episode]], Any]


def convention_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Convention:
    """Return how the function is called, with its own keyword `arguments`. Raises `TypeError` for a parameter that
    nothing is known to fill."""
    signature = inspect.signature(function)
    signature.bind_partial(**arguments)
    parameters = signature.parameters.values()
    free = [one for one in parameters if one.name not in arguments and one.kind is not one.VAR_POSITIONAL]
    names = [one.name for one in free if one.kind is not one.VAR_KEYWORD]
    needed = [one.name for one in free if one.kind is not one.VAR_KEYWORD and one.default is one.empty]
    every = len(names) < len(free)
    waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def called(name: str, wants: tuple[str, ...], given: Given, *, grouped: bool = False, first: int = 0) -> Convention:
        def chosen(one: Any) -> Fields:
            return {name: value for name, value in given(one).items() if every or name in names} | dict(arguments)

        def call(episodes: Sequence[Episode]) -> Any:
            if grouped:
                return function(**chosen(episodes))
            values = [function(*(one.response, one.row)[:first], **chosen(one)) for one in episodes]
            return asyncio.gather(*values) if waits else values

        return Convention(name=name, wants=wants, grouped=grouped or waits, waits=waits, call=call)

    if "completions" in names:
        return called("TRL", ("prompt", "messages", "completion_ids"), _trl, grouped=True)
    if names[:3] == ["queries", "prompts", "labels"]:
        return called("OpenRLHF", ("prompt", "answer"), _openrlhf, grouped=True)
    if names == ["batch"]:
        return called("ours", BY_NAME, lambda episodes: {"batch": list(episodes)}, grouped=True)
    if {"solution_str", "ground_truth"}.issubset(names):
        return called("verl", ("answer",), _verl)
    if "completion" in names and VERIFIERS.issuperset(needed):
        return called("verifiers", BY_NAME, _verifiers)
    by_position = 0 if set(names[:2]).intersection(BY_NAME) else 2
    asked = [name for name in names[by_position:] if name in (*BY_NAME, "response", "row")]
    if unknown := [name for name in needed[by_position:] if name not in asked]:
        raise TypeError(
            f"parameter {unknown[0]!r} is not one of response, row, {', '.join(BY_NAME)}; give it a default or a value "
            "in reward.arguments"
        )
    signature.bind(*[None] * by_position, **dict.fromkeys(asked), **arguments)
    wants = tuple(name for name in asked if name in BY_NAME)
    return called("ours", wants, lambda one: {name: getattr(one, name) for name in asked}, first=by_position)


def _completion(episode: Episode) -> list[Fields]:
    """Return the conversation from the first reply on."""
    replies = [place for place, message in enumerate(episode.messages) if message["role"] == "assistant"]
    return episode.messages[replies[0] :] if replies else []


def _trl(episodes: Sequence[Episode]) -> Fields:
    """Text where the rows have a `prompt` as text, as TRL's standard format, else messages."""
    plain = all(isinstance(one.row.get("prompt"), str) for one in episodes)
    columns = {key: [one.row.get(key) for one in episodes] for key in episodes[0].row}
    return columns | {
        "prompts": [one.row["prompt"] if plain else one.prompt for one in episodes],
        "completions": [one.response if plain else _completion(one) for one in episodes],
        "completion_ids": [one.completion_ids for one in episodes],
    }


def _openrlhf(episodes: Sequence[Episode]) -> Fields:
    prompts = ["\n\n".join(str(message["content"]) for message in one.prompt) for one in episodes]
    return {
        "queries": [prompt + one.response for prompt, one in zip(prompts, episodes, strict=True)],
        "prompts": prompts,
        "labels": [one.row.get("label", one.answer) for one in episodes],
    }


def _verl(episode: Episode) -> Fields:
    row = episode.row
    model = row.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, Mapping) else row.get("ground_truth", episode.answer)
    return {
        "data_source": row.get("data_source", ""),
        "solution_str": episode.response,
        "ground_truth": truth,
        "extra_info": row.get("extra_info"),
    }


def _verifiers(episode: Episode) -> Fields:
    row = episode.row
    own = {
        "prompt": episode.prompt,
        "completion": _completion(episode),
        "answer": row.get("answer", "") if episode.answer is None else episode.answer,
        "info": row.get("info", {}),
        "task": row.get("task", ""),
    }
    return own | {"state": own | {"turn": episode.turns, "is_truncated": episode.truncated, **episode.state}}


def values_of(answer: Any, count: int) -> list[Any]:
    """Return the value of each of `count` episodes: of a list, of OpenRLHF's `{"rewards": …}`, a tensor's too."""
    found: Any = answer.get("rewards") if isinstance(answer, Mapping) else answer
    if hasattr(found, "tolist"):
        found = found.tolist()
    if not isinstance(found, list | tuple) or len(found) != count:
        raise TypeError(f"it returned {answer!r:.200} for {count} replies, not a list with a number for each")
    return [one["score"] if isinstance(one, Mapping) and "score" in one else one for one in found]
