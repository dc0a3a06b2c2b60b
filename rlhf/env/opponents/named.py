"""Parse opponent settings: `self`, a name that the game defines, `module:function`, or a mapping."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, Field

from rlhf.config import Config, build, compiled_pattern, is_piece, load_piece
from rlhf.env.opponents.chat import ChatOpponent, ChatSettings
from rlhf.env.opponents.fixed import FixedOpponent, ListedMoves, Move, Player, ScriptedOpponent
from rlhf.errors import ConfigError
from rlhf.types import Task

Setting = str | Mapping[str, Any] | None


class Opponent(Protocol):
    """Plays the seats without a role of the policy. `seat` begins a game; random draws come from the generator.

    With `fallible` an illegal reply is a move that the game judges; without it, an illegal reply is a programming
    error, and the game is lost.
    """

    @property
    def fallible(self) -> bool: ...

    def seat(self, task: Task, draws: random.Random) -> Player: ...


class Chat(ChatSettings):
    """A model behind an OpenAI-compatible endpoint."""

    kind: Literal["chat"]

    def opponent(self) -> Opponent:
        return ChatOpponent(ChatSettings(**self.model_dump(exclude={"kind"})))


class Script(Config):
    """Replies in order, starting again after the last."""

    kind: Literal["script"]
    replies: tuple[str, ...] = Field(min_length=1)

    def opponent(self) -> Opponent:
        return ScriptedOpponent(replies=self.replies)


class Listed(Config):
    """A random choice among the moves that the game lists: the matches of `pattern` after the last `after`."""

    kind: Literal["listed"]
    pattern: Annotated[str, AfterValidator(lambda text: compiled_pattern(text).pattern)]
    after: str = ""

    def opponent(self) -> Opponent:
        return FixedOpponent(move=ListedMoves(pattern=compiled_pattern(self.pattern), after=self.after))


KINDS: Mapping[str, type[Chat] | type[Script] | type[Listed]] = {"chat": Chat, "script": Script, "listed": Listed}


def opponent_of(setting: Setting, known: Mapping[str, Move] | None = None) -> Opponent | None:
    """The opponent that a setting names; None is self-play. `known` are the game's own opponents. Raises
    `ConfigError`."""
    if setting is None or setting == "self":
        return None
    if isinstance(setting, Mapping):
        return _described(setting)
    if is_piece(setting):
        return FixedOpponent(move=load_piece(setting, "opponent"))
    if known and setting in known:
        return FixedOpponent(move=known[setting])
    names = ", ".join(["self", *(known or {}), "module:function"])
    raise ConfigError(f"opponent is {setting}; write {names}, or a mapping with kind: {', '.join(KINDS)}")


def _described(setting: Mapping[str, Any]) -> Opponent:
    kind = str(setting.get("kind"))
    if kind not in KINDS:
        raise ConfigError(f"opponent.kind is {kind}; write {', '.join(KINDS)}")
    try:
        return build(KINDS[kind], setting).opponent()
    except ConfigError as error:
        raise ConfigError(f"opponent: {error}") from error
