"""Reward functions as users of other projects write them, for tests/reward/test_conventions.py."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from rlhf.reward.conventions import Episode


def ours(reply: str, columns: dict[str, Any]) -> float:
    return float(reply == columns["answer"])


def by_name(response: str, row: dict[str, Any], messages: list[Any], truncated: bool, bonus: float = 0.0) -> float:
    return len(messages) + bonus if not truncated else -1.0


def conversation_only(messages: list[Any], completion_ids: list[int]) -> float:
    assert messages[-1]["role"] == "assistant"
    return float(sum(completion_ids))


def state_of_the_environment(response: str, row: dict[str, Any], state: dict[str, Any], env_info: list[Any]) -> float:
    return float(state["moves"] + 10 * len(env_info))


def only_if_right(response: str, row: dict[str, Any], reward_parts: dict[str, float]) -> float:
    return reward_parts["exact"] / len(response)


def trl_of_sevens(completions: list[Any], **kwargs: Any) -> list[float | None]:
    return [5.0 if one[0]["content"] == "7" else None for one in completions]


def diversity(response: str, row: dict[str, Any], group: list[str]) -> float:
    return 1.0 / group.count(response)


def batch_of_ours(batch: list[Episode]) -> list[float]:
    longest = max(len(one.response) for one in batch)
    return [len(one.response) / longest for one in batch]


async def awaited(response: str, row: dict[str, Any]) -> float:
    """Returns when all of the group are there."""
    MET.append(response)
    while len(MET) < 3:
        await asyncio.sleep(0.01)
    return float(response)


MET: list[str] = []


def trl_format(completions: list[Any], **kwargs: Any) -> list[float]:
    return [1.0 if re.match(r"<think>.*</think>", one[0]["content"]) else 0.0 for one in completions]


def trl_correct(prompts: list[Any], completions: list[Any], answer: list[str], **kwargs: Any) -> list[float | None]:
    assert [prompt[-1]["role"] for prompt in prompts] == ["user"] * len(prompts)
    found = [one[0]["content"].split("</think>")[-1] == right for one, right in zip(completions, answer, strict=True)]
    return [2.0 if right else None for right in found]


def trl_plain(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(prompt) + len(one)) for prompt, one in zip(prompts, completions, strict=True)]


def verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    return {"score": float(data_source == "gsm8k" and solution_str.endswith(ground_truth)), "acc": True}


async def verifiers(completion: list[Any], answer: str, state: dict[str, Any], **kwargs: Any) -> float:
    return 1.0 if completion[-1]["content"].endswith(answer) and state["turn"] == 1 else 0.0


class Rewards:
    """As OpenRLHF's: a tensor, or a dictionary with one."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def tolist(self) -> list[float]:
        return self.values


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> dict[str, Any]:
    replies = [query[len(prompt) :] for query, prompt in zip(queries, prompts, strict=True)]
    return {"rewards": Rewards([float(one == label) for one, label in zip(replies, labels, strict=True)])}


def too_few(completions: list[Any], **kwargs: Any) -> list[float]:
    return [1.0]


def unknown(response: str, row: dict[str, Any], tokenizer: Any) -> float:
    return 0.0
