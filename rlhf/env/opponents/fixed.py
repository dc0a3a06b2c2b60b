"""Opponents without a model: a function, a list of replies, or random choice among the moves that a game lists."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf.types import Task

Move = Callable[[str, random.Random], str]
"""A player's reply to the text it is shown. Random draws come from the generator."""
Player = Callable[[str], str]
"""One seat of one game, called turn by turn: shown text in, reply out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedOpponent:
    """Plays by a function. It knows the rules: an illegal reply is a programming error in the function."""

    move: Move
    fallible: bool = False

    def seat(self, task: Task, draws: random.Random) -> Player:
        return lambda shown: self.move(shown, draws)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOpponent:
    """Gives `replies` in order, starting again after the last, whatever it is shown."""

    replies: Sequence[str]
    fallible: bool = True

    def seat(self, task: Task, draws: random.Random) -> Player:
        left: list[str] = []

        def reply(shown: str) -> str:
            if not left:
                left.extend(self.replies)
            return left.pop(0)

        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMoves:
    """A `Move`: a random choice among the texts that `pattern` finds after the last `after` in the shown text. Raises
    `ValueError` where it finds none: an invented move would be worse than no game."""

    pattern: re.Pattern[str]
    after: str = ""

    def __call__(self, shown: str, draws: random.Random) -> str:
        searched = shown.rpartition(self.after)[2] if self.after else shown
        listed = [found.group() for found in self.pattern.finditer(searched)]
        if not listed:
            raise ValueError(f"the opponent finds no move {self.pattern.pattern!r} in {searched[-200:]!r}")
        return draws.choice(listed)
