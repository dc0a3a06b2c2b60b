"""Gymnasium's spaces as text: formatting observations for the policy, and parsing its actions."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.errors import ConfigError
from rlhf.types import Message, Observation

MARKS = "".join(set(string.punctuation) - set("+-_"))
"""Characters that are stripped around an action: `**left**.` is `left`, and -1 stays -1."""
MOST_NUMBERS = 64
"""Observations with more numbers are not readable as text."""


def readable(space: Any) -> bool:
    """Whether `value_text` gives a short text for its values: images and long arrays are excluded."""
    if isinstance(space.shape, tuple):
        return int(np.prod(space.shape)) <= MOST_NUMBERS
    parts = getattr(space, "spaces", ())  # only Tuple and Dict have parts
    return all(map(readable, parts.values() if isinstance(parts, Mapping) else parts))


def value_text(value: Any) -> str:
    """Return an observation as short text: numbers with at most three decimals, in order, a space between."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return " ".join(f"{key}: {value_text(part)}" for key, part in value.items())
    if isinstance(value, tuple | list):
        return " ".join(value_text(part) for part in value)
    numbers = np.asarray(value).ravel().tolist()
    return " ".join(str(int(number)) if float(number).is_integer() else f"{number:.3f}" for number in numbers)


def records(info: Mapping[str, Any]) -> dict[str, str | float | bool]:
    """Return the part of an environment's `info` that can be recorded: text, numbers and truth values."""
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()}
    return {str(key): value for key, value in plain.items() if isinstance(value, str | int | float | bool)}


def step_observation(text: str, reward: Any, terminated: Any, truncated: Any, info: Mapping[str, Any]) -> Observation:
    """Return what a step of Gymnasium's interface returned, its observation already written as text."""
    return Observation(
        messages=(Message(role="user", content=text),),
        reward=float(reward),
        terminated=bool(terminated),
        truncated=bool(truncated),
        info=records(info),
    )


def digits(limits: Sequence[Sequence[float]], space: Any) -> Callable[[Any], str]:
    """Return a function that writes the numbers of a space as one digit each, `0` to `9`: ten equal bins between the
    limits, an even number, so that one edge is in the middle. Raises `ConfigError`."""
    pairs = [(float(low), float(high)) for low, high in limits]
    size = int(np.prod(space.shape)) if space.shape is not None else 0
    if len(pairs) != size or any(low >= high for low, high in pairs):
        raise ConfigError(f"bins needs {size} pairs [low, high] with low < high, one for each number of {space}")
    low, high = np.array(pairs).T

    def written(value: Any) -> str:
        numbers = np.asarray(value, dtype=np.float64).ravel()
        return "".join(map(str, np.clip((numbers - low) / (high - low) * 10, 0, 9).astype(int)))

    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Actions of a Discrete space by name: the last word of a reply selects one."""

    names: tuple[str, ...]
    first: int

    @property
    def answers(self) -> str:
        return f"one of {' '.join(self.names)}"

    def action(self, reply: str) -> int | None:
        """Return the action, or None for a reply without a known name."""
        words = reply.lower().split()
        word = words[-1].strip(MARKS) if words else ""
        lowered = [name.lower() for name in self.names]
        return self.first + lowered.index(word) if word in lowered else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextActions:
    """Actions of a Text space: the whole reply, if the space contains it."""

    space: Any

    @property
    def answers(self) -> str:
        return f"{self.space.min_length} to {self.space.max_length} of the characters {self.space.characters}"

    def action(self, reply: str) -> str | None:
        text = reply.strip()
        return text if self.space.contains(text) else None


def discrete_choices(space: Any, names: Sequence[str] | None) -> Choices:
    """Names for a Discrete space, by default the numbers of its actions. Raises `ConfigError`."""
    count, first = int(space.n), int(space.start)
    given = tuple(names) if names is not None else tuple(str(first + index) for index in range(count))
    if len({name.lower() for name in given}) != count:
        raise ConfigError(
            f"actions has {len(given)} names for the {count} actions of {space}: give each a different name"
        )
    if odd := [name for name in given if len(name.split()) != 1 or name.strip(MARKS) != name]:
        raise ConfigError(f"actions has {odd[0]!r}: a name is one word without punctuation around it")
    return Choices(names=given, first=first)
