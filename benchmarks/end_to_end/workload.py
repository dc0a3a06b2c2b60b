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

PROMPTS_PER_UPDATE = 64
SAMPLES_PER_PROMPT = 8
COMPLETION_TOKENS = 32
DIGITS = 5
SAMPLES_PER_UPDATE = PROMPTS_PER_UPDATE * SAMPLES_PER_PROMPT
LEARNING_RATE = 1e-5
"""Small: the policy stays near its random start, so that every update is the same amount of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Where the start model (a Hugging Face folder) and the prompts (JSONL, column `question`) are."""

    model: Path
    prompts: Path


def reward(response: str, row: Mapping[str, Any]) -> float:
    """The share of ASCII letters and digits among the response's characters; different for nearly every response."""
    return sum(c.isascii() and c.isalnum() for c in response) / COMPLETION_TOKENS


def write_prompts(path: Path, rows: int) -> None:
    """`rows` different numbers of `DIGITS` digits: every prompt has the same number of tokens."""
    numbers = random.Random(0).sample(range(10 ** (DIGITS - 1), 10**DIGITS), rows)
    path.write_text("".join(json.dumps({"question": str(number)}) + "\n" for number in numbers))
