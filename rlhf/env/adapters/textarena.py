"""Adapter for TextArena's games: for one player, against an opponent, or self-play in several roles."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.env.adapters.episode_random import EpisodeRandom
from rlhf.env.adapters.imports import imported
from rlhf.env.opponents import OpponentSetting, Player, opponent_of
from rlhf.env.single_turn import first_messages
from rlhf.errors import ConfigError
from rlhf.types import EnvironmentSpec, Message, Observation, Task


class TextArenaEnvironment:
    """One game of `id` with `players` seats, made with `options`. `opponent` plays every seat except `seat`: then there
    is one role, `agent`. Without one (or with `self`) each seat is a role, `player_0` and so on. The rewards of all
    roles are given at the end, in `info["rewards"]`; with one role also as the reward of its last action. All random
    draws of a game come from its own seed. Raises `ConfigError`, and what the opponent raises."""

    def __init__(
        self,
        id: str,
        *,
        players: int = 2,
        opponent: OpponentSetting = None,
        seat: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._library = imported("textarena")
        if id not in self._library.envs.registration.ENV_REGISTRY:
            raise ConfigError(f"textarena has no game {id}")
        if not 0 <= seat < players:
            raise ConfigError(f"seat is {seat}, but the game has the seats 0 to {players - 1}")
        self._id, self._players, self._options = id, players, dict(options or {})
        self._opponent = opponent_of(opponent)
        self._roles = {number: f"player_{number}" for number in range(players)}
        if self._opponent or players == 1:
            self._roles = {seat: "agent"}
        self.spec = EnvironmentSpec(
            name=id, description=f"{id} of TextArena, {players} players", roles=tuple(self._roles.values())
        )

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._random = EpisodeRandom(seed)
        with self._random.drawing():
            self._game = self._library.make(self._id, **self._options)
            self._game.reset(num_players=self._players, seed=seed)
        self._task, self._asked = task, set[int]()
        self._others = self._seated(task, seed)
        seat, shown = self._advance(done=False)
        if seat is None:
            raise RuntimeError(f"{self._id} ended before {', '.join(self.spec.roles)} could act")
        return self._shown(seat, shown)

    def step(self, action: Message) -> Observation:
        with self._random.drawing():
            actor = self._game.state.current_player_id
            done, _ = self._game.step(action.content)
        seat, shown = self._advance(done)
        if seat is not None:
            return self._shown(seat, shown)
        return self._ended(self._roles[actor])

    def close(self) -> None:
        """No resources to free: the final observation contains the result."""

    def _advance(self, done: bool) -> tuple[int | None, str]:
        """Play opponents' moves. Returns the seat of the role that acts next, None at the end, and its observation."""
        while not done:
            with self._random.drawing():
                seat, shown = self._game.get_observation()
            if seat in self._roles:
                return seat, player_view(shown, seat)
            reply = self._others[seat](player_view(shown, seat))
            with self._random.drawing():
                done, _ = self._game.step(reply)
        return None, ""

    def _seated(self, task: Task, seed: int) -> dict[int, Player]:
        """Return the opponents in all seats without a role, each with its own random stream."""
        if self._opponent is None:
            return {}
        free = set(range(self._players)) - set(self._roles)
        return {seat: self._opponent.seat(task, random.Random(f"opponent {seed} {seat}")) for seat in free}

    def _shown(self, seat: int, text: str) -> Observation:
        """Return the observation of a seat before it acts; its first one starts with the task's messages."""
        first = seat not in self._asked
        self._asked.add(seat)
        messages = first_messages(self._task, text) if first else (Message(role="user", content=text),)
        return Observation(messages=messages, role=self._roles[seat])

    def _ended(self, actor: str) -> Observation:
        with self._random.drawing():
            rewards, notes = self._game.close()
        earned = {role: float(rewards[seat]) for seat, role in self._roles.items()}
        reasons = {role: str(notes[seat].get("reason", "")) for seat, role in self._roles.items()}
        return Observation(
            messages=(),
            reward=earned[actor] if len(earned) == 1 else None,
            terminated=True,
            role=actor,
            info={"rewards": earned, "reasons": reasons},
        )


def player_view(shown: str | Sequence[tuple[int, str, Any]], seat: int) -> str:
    """Return the text shown to a seat: of a `-raw` game the messages of others since its last turn."""
    if isinstance(shown, str):
        return shown
    return "\n".join(
        said if speaker < 0 else f"[Player {speaker}] {said}" for speaker, said, _ in shown if speaker != seat
    )
