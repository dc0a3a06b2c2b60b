"""Tic-tac-toe in few bytes, by self-play or against a fixed opponent: a player reads nine squares and writes one digit.

The player to move sees `x` for its marks, `o` for the other's, and the numbers of free squares: `1x3o56789`. So one
policy plays both roles without knowing its role.
"""

from __future__ import annotations

import random
from collections import Counter

from rlhf.env.opponents import OpponentSetting, opponent_of
from rlhf.env.single_turn import first_messages
from rlhf.errors import ConfigError, OpponentFailed
from rlhf.types import EnvironmentSpec, Message, Observation, Task

EMPTY = "123456789"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
ROLES = ("first", "second")
MOST_OPENING_MOVES = 3
SWAPPED = str.maketrans("xo", "ox")


class TicTacToeEnvironment:
    """One game. `opponent` is `self` for two roles, `first` and `second`; `random`, a function `module:function`, or a
    mapping as `rlhf.env.opponents` reads it, for one role, `agent`, which begins in half of the games, as the
    seed says.

    A win is 1, a draw 0, a defeat -1: at the end, in `info["rewards"]` by role, with one role also as the reward of its
    last move. The answer to a reply other than a free square is `?` and the board; a player with more than
    `illegal_allowed` such replies has lost. At most `opening_moves` are made at random before, as the seed says: the
    games of a group begin alike, and those of different groups all over the board. Raises `ConfigError`, and what the
    opponent raises.
    """

    def __init__(self, *, opponent: OpponentSetting = "self", illegal_allowed: int = 1, opening_moves: int = 0) -> None:
        if not 0 <= opening_moves <= MOST_OPENING_MOVES:
            raise ConfigError(f"opening_moves is {opening_moves}; 0 to {MOST_OPENING_MOVES} come before a win")
        self._opponent = opponent_of(opponent, {"random": at_random})
        self._illegal_allowed, self._opening_moves = illegal_allowed, opening_moves
        self.spec = EnvironmentSpec(
            name="tictactoe",
            description="Tic-tac-toe: x is yours, o the other's; answer with the number of a free square",
            roles=ROLES if self._opponent is None else ("agent",),
        )

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._draws = random.Random(seed)
        self._task, self._asked, self._illegal = task, set[int](), Counter[int]()
        self._board, self._mover, self._over, self._refused = EMPTY, 0, False, False
        self._winner: int | None = None
        self._roles = dict(enumerate(ROLES)) if self._opponent is None else {self._draws.randrange(2): "agent"}
        for _ in range(self._draws.randint(0, self._opening_moves)):
            self._take(at_random(self._board, self._draws))
        self._player = None if self._opponent is None else self._opponent.seat(task, self._draws)
        self._let_opponent_move()
        if self._over:
            raise OpponentFailed("of tictactoe", "illegal", f"it said {self._last!r} before the agent could act")
        return self._shown()

    def step(self, action: Message) -> Observation:
        actor = self._mover
        self._act(action.content)
        self._let_opponent_move()
        return self._ended(self._roles[actor]) if self._over else self._shown()

    def close(self) -> None:
        """Do nothing: a game has no resources."""

    def _act(self, reply: str) -> None:
        """Take a free square; refuse another reply, and end the game after too many of them."""
        square, mover = reply.strip(), self._mover
        self._refused = square not in free(self._board)
        if not self._refused:
            self._take(square)
        elif self._illegal[mover] < self._illegal_allowed:
            self._illegal[mover] += 1
        else:
            self._winner, self._over = 1 - mover, True

    def _take(self, square: str) -> None:
        """Take a free square for the player to move, and pass the board to the other player."""
        board = self._board.replace(square, "x")
        if won(board):
            self._winner = self._mover
        self._over = won(board) or not free(board)
        self._board, self._mover = board.translate(SWAPPED), 1 - self._mover

    def _let_opponent_move(self) -> None:
        while self._player and self._opponent and not self._over and self._mover not in self._roles:
            reply = self._player(self._text)
            if not self._opponent.fallible and reply.strip() not in free(self._board):
                raise ValueError(f"the opponent said {reply!r} to the board {self._board}, which is not a free square")
            self._last = reply
            self._act(reply)

    @property
    def _text(self) -> str:
        """The text for the player to move."""
        return "?" + self._board if self._refused else self._board

    def _shown(self) -> Observation:
        """Return the observation of the role to move; its first one includes the task's messages."""
        first = self._mover not in self._asked
        self._asked.add(self._mover)
        messages = first_messages(self._task, self._text) if first else (Message(role="user", content=self._text),)
        return Observation(messages=messages, role=self._roles[self._mover])

    def _ended(self, actor: str) -> Observation:
        rewards = {role: result(seat, self._winner) for seat, role in self._roles.items()}
        return Observation(
            messages=(),
            reward=rewards[actor] if len(rewards) == 1 else None,
            terminated=True,
            role=actor,
            info={"rewards": rewards, "illegal": sum(self._illegal[seat] for seat in self._roles)},
        )


def free(board: str) -> list[str]:
    """Return the numbers of the free squares."""
    return [square for square in board if square in EMPTY]


def won(board: str) -> bool:
    """Whether `x` has three in a row."""
    return any(all(board[square] == "x" for square in line) for line in LINES)


def result(seat: int, winner: int | None) -> float:
    """Return the result of a game for a seat."""
    return 0.0 if winner is None else 1.0 if winner == seat else -1.0


def at_random(board: str, draws: random.Random) -> str:
    """Any free square."""
    return draws.choice(free(board))
