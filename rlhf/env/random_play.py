"""Random play as demonstrations: a tiny model that is warmed up on it knows which replies are actions, and no more.

Conversations are what a policy sees with `history: last_n` of 1: what its role was shown first, and its last turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from rlhf.env.adapters.gymnasium import GymnasiumEnvironment
from rlhf.env.tictactoe import TicTacToeEnvironment, free
from rlhf.protocols import LocalEnvironment
from rlhf.types import Message, Task

CARTPOLE_BINS = ((-2.4, 2.4), (-2.5, 2.5), (-0.21, 0.21), (-2.5, 2.5))
"""Limits of position, speed, angle and angular speed within which a pole is balanced: the track's end, the fall."""

Replies = Callable[[str], list[str]]
"""The actions that may be said to what is shown."""


def cartpole(count: int, seed: int) -> Iterator[list[Message]]:
    """`count` conversations about the pole in four digits. Raises `ConfigError` without Gymnasium."""
    return first_of(count, lambda: GymnasiumEnvironment("CartPole-v1", bins=CARTPOLE_BINS), lambda _: ["0", "1"], seed)


def tictactoe(count: int, seed: int) -> Iterator[list[Message]]:
    """`count` conversations of players that take any free square."""
    return first_of(count, TicTacToeEnvironment, free, seed)


def first_of(
    count: int, create: Callable[[], LocalEnvironment], replies: Replies, seed: int
) -> Iterator[list[Message]]:
    """`count` conversations of as many episodes as that takes."""
    draws = random.Random(f"random play {seed}")
    while count > 0:
        for conversation in episode(create(), replies, draws):
            yield conversation
            count -= 1
            if count == 0:
                return


def episode(environment: LocalEnvironment, replies: Replies, draws: random.Random) -> Iterator[list[Message]]:
    """One conversation a turn, of the role whose turn it was."""
    before: dict[str, list[Message]] = {}
    heard = environment.reset(Task(id="random play", messages=()), seed=draws.getrandbits(32))
    while not heard.done:
        said = Message(role="assistant", content=draws.choice(replies(heard.messages[-1].content)))
        seen = [*before.get(heard.role, ()), *heard.messages]
        yield [*seen, said]
        before[heard.role] = [*seen[:1], said]
        heard = environment.step(said)
    environment.close()
