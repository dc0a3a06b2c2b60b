"""Opponents that play the other seats of a game, and the setting that names one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from rlhf.config import Config, build, compiled_pattern, is_piece, load_piece
from rlhf.env.chat_opponent import ChatOpponent
from rlhf.errors import ConfigError
from rlhf.types import Task

Move = Callable[[str, random.Random], str]
"""A player's reply to the text it is shown. Random draws come from the generator."""
Player = Callable[[str], str]
"""One seat of one game, called turn by turn: shown text in, reply out."""
OpponentSetting = str | Mapping[str, Any] | None
"""`self` or None, a name that the game defines, `module:function`, or a mapping with `kind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOpponent:
    """Plays by a function. It knows the rules: an illegal reply is a programming error in the function."""

    move: Move
    fallible: bool = False

    def seat(self, task: Task, draws: random.Random) -> Player:
        return lambda shown: self.move(shown, draws)


class ScriptedOpponent(Config):
    """Gives `replies` in order, starting again after the last, for any text."""

    fallible: ClassVar[bool] = True
    kind: Literal["script"] = "script"
    replies: tuple[str, ...] = Field(min_length=1)

    def seat(self, task: Task, draws: random.Random) -> Player:
        replies = itertools.cycle(self.replies)
        return lambda shown: next(replies)


class ListedOpponent(Config):
    """Makes a random choice among the moves that the game lists: the matches of `pattern` after the last `after`."""

    fallible: ClassVar[bool] = False
    kind: Literal["listed"] = "listed"
    pattern: Annotated[str, AfterValidator(lambda text: compiled_pattern(text).pattern)]
    after: str = ""

    def seat(self, task: Task, draws: random.Random) -> Player:
        """Return a player that raises `ValueError` where no move is listed, because it must not invent one."""
        pattern = compiled_pattern(self.pattern)

        def reply(shown: str) -> str:
            searched = shown.rpartition(self.after)[2] if self.after else shown
            moves = [found.group() for found in pattern.finditer(searched)]
            if not moves:
                raise ValueError(f"the opponent's pattern {self.pattern!r} matches no move in {searched[-200:]!r}")
            return draws.choice(moves)

        return reply


Opponent = FunctionOpponent | ScriptedOpponent | ListedOpponent | ChatOpponent
"""Plays the seats without a role of the policy. `seat` begins a game; random draws come from the generator. Where it is
`fallible`, an illegal reply is a move that the game judges; else it is a programming error, and the game is lost."""
OPPONENTS: Mapping[str, type[ChatOpponent] | type[ScriptedOpponent] | type[ListedOpponent]] = {
    "chat": ChatOpponent,
    "script": ScriptedOpponent,
    "listed": ListedOpponent,
}
"""Opponents by `kind`."""


def opponent_of(setting: OpponentSetting, known: Mapping[str, Move] | None = None) -> Opponent | None:
    """Return the opponent of a setting; None is self-play. `known` are the game's own. Raises `ConfigError`."""
    if setting is None or setting == "self":
        return None
    kinds = ", ".join(OPPONENTS)
    if isinstance(setting, Mapping):
        if (kind := str(setting.get("kind"))) not in OPPONENTS:
            raise ConfigError(f"opponent.kind is {kind}; write {kinds}")
        try:
            return build(OPPONENTS[kind], setting)
        except ConfigError as error:
            raise ConfigError(f"opponent: {error}") from error
    if is_piece(setting):
        return FunctionOpponent(move=load_piece(setting, "opponent"))
    if known and setting in known:
        return FunctionOpponent(move=known[setting])
    names = ", ".join(["self", *(known or {}), "module:function"])
    raise ConfigError(f"opponent is {setting}; write {names}, or a mapping with kind: {kinds}")
