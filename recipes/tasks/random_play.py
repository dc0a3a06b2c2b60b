"""Random play as demonstrations: a tiny model that is warmed up on it knows which replies are actions, and no more.

A conversation is what a policy sees with `last_n: 0`, one turn: what it is shown, and a reply.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from recipes.tasks.kuhn_poker import CARDS, KuhnPokerEnvironment
from recipes.tasks.tictactoe import TicTacToeEnvironment, free
from rlhf.env.adapters.gymnasium import GymnasiumEnvironment
from rlhf.protocols import LocalEnvironment
from rlhf.types import Message, Task

Replies = Callable[[str], list[str]]
"""The actions that may be said to what is shown."""


def gymnasium(count: int, seed: int, **arguments: Any) -> Iterator[list[Message]]:
    """`count` turns of a Gymnasium environment with few actions, made with these arguments. Raises `ConfigError`."""
    actions = list(GymnasiumEnvironment(**arguments).action_names)
    return first_conversations(count, partial(GymnasiumEnvironment, **arguments), lambda _: actions, seed)


def tictactoe(count: int, seed: int, **arguments: Any) -> Iterator[list[Message]]:
    """`count` turns of players that take any free square."""
    return first_conversations(count, partial(TicTacToeEnvironment, **arguments), free, seed)


def kuhn_poker(count: int, seed: int) -> Iterator[list[Message]]:
    """`count` turns of players that bet in 1 to 10 of 11 turns: more often with a better card, where there is no bet to
    call, and in the second seat. After uniform play, in which nothing depends on what is read, an adapter does not
    learn to read it."""

    def replies(shown: str) -> list[str]:
        bets = 1 + 3 * CARDS.index(shown[0]) + 2 * (shown[-1] != "b") + (len(shown) == 2)
        return ["b"] * bets + ["p"] * (11 - bets)

    return first_conversations(count, KuhnPokerEnvironment, replies, seed)


def first_conversations(
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
    """One conversation a turn."""
    heard = environment.reset(Task(id="random play", messages=()), seed=draws.getrandbits(32))
    while not heard.done:
        reply = Message(role="assistant", content=draws.choice(replies(heard.messages[-1].content)))
        yield [*heard.messages, reply]
        heard = environment.step(reply)
    environment.close()
