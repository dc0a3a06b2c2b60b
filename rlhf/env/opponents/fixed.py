"""Opponents that are no model: a function, replies in turn, or any of the moves that a game lists."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf.types import Task

Move = Callable[[str, random.Random], str]
"""What a player answers to what it is shown. Its draws come from the generator."""
Player = Callable[[str], str]
"""One seat of one game, asked turn by turn: what it is shown in, its reply out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedOpponent:
    """Plays as a function says. It knows the rules: a reply against them is a mistake of whoever wrote it."""

    move: Move
    fallible: bool = False

    def seat(self, task: Task, draws: random.Random) -> Player:
        return lambda shown: self.move(shown, draws)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOpponent:
    """Gives `replies` in turn, and begins again after the last, whatever it is shown."""

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
    """A `Move`: any text that `pattern` finds behind the last `after` in what is shown. Raises `ValueError` where it
    finds none, since a move that is made up would be worse than no game."""

    pattern: re.Pattern[str]
    after: str = ""

    def __call__(self, shown: str, draws: random.Random) -> str:
        searched = shown.rpartition(self.after)[2] if self.after else shown
        listed = [found.group() for found in self.pattern.finditer(searched)]
        if not listed:
            raise ValueError(f"the opponent finds no move {self.pattern.pattern!r} in {searched[-200:]!r}")
        return draws.choice(listed)
