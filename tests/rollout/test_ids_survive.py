"""Ids sampled equal ids trained: odd tokens, templates, tools and histories, from the engine to the learner's batch."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.types import Message, Observation, Trajectory
from tests.models.templates import APPENDING, tokenizer_with
from tests.rollout.endpoint.asking import check
from tests.rollout.playing import TASK, ScriptedEngine, ScriptedEnvironment, play_alone, policy, rules, says

ODD = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "add", "arguments": {}}',
    "<think>\n",
    "<|im_start|>",
    "ä€😀",
    " \n",
    "",
]
"""Text that templates and parsers look for, beside bytes that make no text at all."""


def odd_reply(chance: random.Random, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that no encoder would give: half characters, marks in the middle, everything but the stop token."""
    pieces = [tokenizer.encode(chance.choice(ODD), add_special_tokens=False) for _ in range(chance.randrange(4))]
    noise = [chance.randrange(len(tokenizer)) for _ in range(chance.randrange(12))]
    tokens = [token for piece in pieces for token in piece] + noise
    return [token for token in tokens if token != tokenizer.eos_token_id]


def heard(chance: random.Random) -> Observation:
    role = chance.choice(["user", "tool"])
    messages = [Message(role=role, content=chance.choice(ODD)) for _ in range(chance.choice([1, 1, 2]))]
    return Observation(messages=tuple(messages), reward=chance.choice([None, 0.5]))


@pytest.mark.parametrize("last_turns", [None, 1, 2])
@pytest.mark.parametrize("template", APPENDING.values(), ids=APPENDING)
async def test_what_was_sampled_is_what_is_trained(template: str, last_turns: int | None) -> None:
    tokenizer = tokenizer_with(template)
    for number in range(25):
        chance = random.Random(f"{template} {last_turns} {number}")
        replies = [odd_reply(chance, tokenizer) for _ in range(4)]
        observations = [heard(chance) for _ in range(4)]
        engine = ScriptedEngine(*replies, stop=tokenizer.eos_token_id)
        trajectory = await play_alone(
            TASK,
            policy(engine, tokenizer),
            ScriptedEnvironment(says("go"), *observations),
            seed=0,
            rules=rules(last_turns=last_turns, max_turns=4),
        )
        assert isinstance(trajectory, Trajectory)
        check(trajectory, engine)
