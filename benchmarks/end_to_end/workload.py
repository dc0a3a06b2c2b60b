"""The work that both sides do. TRL's virtualenv imports this module too, so it needs nothing but Python."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Precision = Literal["float32", "bfloat16"]
"""Of forward and backward passes and of generation; master weights and optimizer state are float32 on both sides."""
Lengths = Literal["equal", "long_tail"]
"""Of the replies: all as long as one another, or most short and a few very long."""

PROMPTS_PER_UPDATE = 64
SAMPLES_PER_PROMPT = 8
SAMPLES_PER_UPDATE = PROMPTS_PER_UPDATE * SAMPLES_PER_PROMPT
EQUAL_TOKENS = 32
LONGEST_TOKENS = 224
LOG_MEAN, LOG_DEVIATION = 3.105, 1.0
"""Of the long-tailed lengths' logarithms: rounded and capped at `LONGEST_TOKENS`, their mean is 36."""
DIGITS = 5
LEARNING_RATE = 1e-5
"""Small: the policy stays near its random start, so that every update is the same amount of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Where the start model (a Hugging Face folder) and the prompts (JSONL, column `question`) are."""

    model: Path
    prompts: Path


def reply_tokens(lengths: Lengths) -> list[int]:
    """Tokens of each reply of an update, `[SAMPLES_PER_UPDATE]`, the samples of a prompt one after another. Every
    update of either side plays these."""
    if lengths == "equal":
        return [EQUAL_TOKENS] * SAMPLES_PER_UPDATE
    draw = random.Random(0).lognormvariate
    drawn = (round(draw(LOG_MEAN, LOG_DEVIATION)) for _ in range(SAMPLES_PER_UPDATE))
    return [min(max(tokens, 1), LONGEST_TOKENS) for tokens in drawn]


def reward(response: str, row: Mapping[str, Any]) -> float:
    """The ASCII letters and digits of the response, in 32nds; their number differs for nearly every response."""
    return sum(c.isascii() and c.isalnum() for c in response) / 32


def write_prompts(path: Path, rows: int) -> None:
    """`rows` different numbers of `DIGITS` digits: every prompt has the same number of tokens."""
    numbers = random.Random(0).sample(range(10 ** (DIGITS - 1), 10**DIGITS), rows)
    path.write_text("".join(json.dumps({"question": str(number)}) + "\n" for number in numbers))
