"""Tic-tac-toe is played by its rules, in few bytes, and what it is worth is worth the opposite to the other."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from recipes.tasks.tictactoe import SWAPPED, TicTacToeEnvironment, at_random, free, won
from rlhf.errors import ConfigError
from rlhf.types import Message, Observation, Task

NOTHING = Task(id="0", messages=())


@functools.cache
def worth(board: str) -> int:
    """What a board is worth to the player to move, by trying everything."""
    if won(board.translate(SWAPPED)):
        return -1
    return max((-worth(board.replace(square, "x").translate(SWAPPED)) for square in free(board)), default=0)


def perfectly(board: str, draws: random.Random) -> str:
    return max(free(board), key=lambda square: -worth(board.replace(square, "x").translate(SWAPPED)))


def nonsense(board: str, draws: random.Random) -> str:
    return "middle"


def move(environment: TicTacToeEnvironment, *squares: str) -> Observation:
    for square in squares:
        observation = environment.step(Message(role="assistant", content=square))
    return observation


def played(environment: TicTacToeEnvironment, seed: int, player: object = at_random) -> list[Observation]:
    draws, observations = random.Random(f"player {seed}"), [environment.reset(NOTHING, seed=seed)]
    while not observations[-1].done:
        board = observations[-1].messages[0].content
        observations.append(move(environment, player(board, draws)))  # type: ignore[operator]
    return observations


def test_whoever_plays_perfectly_never_loses_and_beats_chance() -> None:
    game = TicTacToeEnvironment(opponent="random")
    results = [played(game, seed, perfectly)[-1].reward for seed in range(40)]
    assert -1.0 not in results
    assert results.count(1.0) > 30


def test_against_an_opponent_one_role_plays_and_begins_in_about_half_of_the_games() -> None:
    game = TicTacToeEnvironment(opponent="random")
    assert game.spec.roles == ("agent",)
    begins = [game.reset(NOTHING, seed=seed).messages[0].content == "123456789" for seed in range(100)]
    assert 30 < sum(begins) < 70


def test_the_same_seed_is_the_same_game() -> None:
    game = TicTacToeEnvironment(opponent="random")
    assert played(game, 5) == played(game, 5)
    assert played(game, 5) != played(game, 6)


@pytest.mark.parametrize("reply", ["", "0", "5", "12", "x", "one", "²", "1 2"])
def test_a_reply_that_is_no_free_square_is_answered_and_a_second_one_loses(reply: str) -> None:
    game = TicTacToeEnvironment()
    game.reset(NOTHING, seed=0)
    move(game, "5")
    answered = move(game, reply)
    assert (answered.role, answered.messages[0].content, answered.done) == ("second", "?1234o6789", False)
    lost = move(game, reply)
    assert lost.terminated
    assert lost.info["rewards"] == {"first": 1.0, "second": -1.0}


def test_an_opponent_that_breaks_the_rules_is_an_error_and_no_result() -> None:
    game = TicTacToeEnvironment(opponent="tests.recipes.test_tictactoe:nonsense")
    with pytest.raises(ValueError, match="not a free square"):
        played(game, 0)


def test_an_opening_follows_from_the_seed_and_the_role_from_the_moves_made() -> None:
    openings = [TicTacToeEnvironment(opening_moves=3).reset(NOTHING, seed=seed) for seed in range(60)]
    again = [TicTacToeEnvironment(opening_moves=3).reset(NOTHING, seed=seed) for seed in range(60)]
    assert openings == again
    made = [9 - len(free(opening.messages[0].content)) for opening in openings]
    assert set(made) == {0, 1, 2, 3}
    assert [opening.role for opening in openings] == [("first", "second")[moves % 2] for moves in made]
    assert len({opening.messages[0].content for opening in openings}) > 20


@pytest.mark.parametrize(
    ("moves", "rewards"),
    [
        ("14253", {"first": 1.0, "second": -1.0}),
        ("512846379", {"first": 0.0, "second": 0.0}),
        ("142568793", {"first": 1.0, "second": -1.0}),  # three in a row on a full board
    ],
)
def test_three_in_a_row_wins_and_a_full_board_without_it_is_a_draw(moves: str, rewards: dict[str, float]) -> None:
    game = TicTacToeEnvironment()
    heard = [game.reset(NOTHING, seed=0), *(move(game, square) for square in moves)]
    assert [(one.role, one.messages[0].content) for one in heard[:2]] == [
        ("first", "123456789"),
        ("second", "123456789".replace(moves[0], "o")),
    ], "each role sees the board as its own"
    assert [one.done for one in heard] == [False] * len(moves) + [True]
    assert heard[-1].info["rewards"] == rewards


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"opponent": "me"}, "write self, random, module:function, or a mapping"), ({"opening_moves": 5}, "0 to 3")],
)
def test_arguments_that_mean_no_game_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TicTacToeEnvironment(**arguments)
