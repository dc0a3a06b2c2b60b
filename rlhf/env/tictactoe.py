"""Tic-tac-toe in few bytes: nine squares are read, one digit is said. Self-play, or against a fixed opponent.

The board is as the player to move sees it: `x` its own marks, `o` the other's, a free square its number. So one policy
plays both roles without being told which it has, and there is nothing to count: `1x3o56789`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import cast

from rlhf.env.asking import asked
from rlhf.errors import ConfigError
from rlhf.pieces import is_piece, load_piece
from rlhf.types import EnvironmentSpec, Message, Observation, Task

EMPTY = "123456789"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
ROLES = ("first", "second")
MOST_OPENING_MOVES = 4
SWAPPED = str.maketrans("xo", "ox")

Opponent = Callable[[str, random.Random], str]
"""The square it takes of a board, `1` to `9`. Its draws come from the generator."""


class TicTacToeEnvironment:
    """One game. `opponent` is `self` for two roles, `first` and `second`; `random`, or a function `module:function`,
    for one role, `agent`, which begins in half of the games, as the seed says.

    A win is 1, a draw 0, a defeat -1: at the end, in `info["rewards"]` by role, with one role also as the reward of its
    last move. A reply that is no free square is answered with `?` and the board; a role that gives more than
    `illegal_allowed` of them has lost. At most `opening_moves` are made at random before, as the seed says: the games
    of a group begin alike, and those of different groups all over the board.
    """

    def __init__(self, *, opponent: str = "self", illegal_allowed: int = 1, opening_moves: int = 0) -> None:
        if not 0 <= opening_moves <= MOST_OPENING_MOVES:
            raise ConfigError(f"opening_moves is {opening_moves}; 0 to {MOST_OPENING_MOVES} can be made without a win")
        self._opponent = opponent_of(opponent)
        self._illegal_allowed, self._opening_moves = illegal_allowed, opening_moves
        self.spec = EnvironmentSpec(
            name="tictactoe",
            description="Tic-tac-toe: x is yours, o the other's; answer with the number of a free square",
            roles=ROLES if self._opponent is None else ("agent",),
        )

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._draws = random.Random(seed)
        self._task, self._asked, self._illegal = task, set[int](), Counter[int]()
        self._board, self._mover, self._over = EMPTY, 0, False
        self._winner: int | None = None
        self._roles = dict(enumerate(ROLES)) if self._opponent is None else {self._draws.randrange(2): "agent"}
        for _ in range(self._draws.randint(0, self._opening_moves)):
            self._take(at_random(self._board, self._draws))
        self._let_opponent_move()
        return self._shown(self._board)

    def step(self, action: Message) -> Observation:
        actor, square = self._mover, action.content.strip()
        if square in free(self._board):
            self._take(square)
            self._let_opponent_move()
        elif self._illegal[actor] < self._illegal_allowed:
            self._illegal[actor] += 1
            return self._shown("?" + self._board)
        else:
            self._winner, self._over = 1 - actor, True
        return self._ended(self._roles[actor]) if self._over else self._shown(self._board)

    def close(self) -> None:
        """Nothing is held."""

    def _take(self, square: str) -> None:
        """The player to move takes a free square; then the other sees the board, or it is over."""
        board = self._board.replace(square, "x")
        if won(board):
            self._winner = self._mover
        self._over = won(board) or not free(board)
        self._board, self._mover = board.translate(SWAPPED), 1 - self._mover

    def _let_opponent_move(self) -> None:
        if self._opponent is None or self._over or self._mover in self._roles:
            return
        square = self._opponent(self._board, self._draws)
        if square not in free(self._board):
            raise ValueError(f"the opponent said {square!r} to the board {self._board}: that is no free square")
        self._take(square)

    def _shown(self, text: str) -> Observation:
        """What the player to move reads; each is told first what the task says."""
        first = self._mover not in self._asked
        self._asked.add(self._mover)
        messages = asked(self._task, text) if first else (Message(role="user", content=text),)
        return Observation(messages=messages, role=self._roles[self._mover])

    def _ended(self, actor: str) -> Observation:
        rewards = {role: result(seat, self._winner) for seat, role in self._roles.items()}
        return Observation(
            messages=(),
            reward=rewards[actor] if len(rewards) == 1 else None,
            terminated=True,
            role=actor,
            info={"rewards": rewards, "illegal": self._illegal.total()},
        )


def free(board: str) -> list[str]:
    """The squares that nobody has, by number."""
    return [square for square in board if square in EMPTY]


def won(board: str) -> bool:
    """Whether `x` has three in a row."""
    return any(all(board[square] == "x" for square in line) for line in LINES)


def result(seat: int, winner: int | None) -> float:
    """What a game is worth to a seat."""
    return 0.0 if winner is None else 1.0 if winner == seat else -1.0


def at_random(board: str, draws: random.Random) -> str:
    """Any free square."""
    return draws.choice(free(board))


def opponent_of(name: str) -> Opponent | None:
    """The function that a setting names; None is self-play. Raises `ConfigError`."""
    if is_piece(name):
        return cast(Opponent, load_piece(name, "opponent"))
    known: dict[str, Opponent | None] = {"self": None, "random": at_random}
    if name not in known:
        raise ConfigError(f"opponent is {name}; write self, random, or module:function")
    return known[name]
