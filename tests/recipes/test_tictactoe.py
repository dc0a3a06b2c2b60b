"""Tic-tac-toe is played by its rules, in few bytes, and what it is worth is worth the opposite to the other."""

from __future__ import annotations

import functools
import random

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


def test_each_role_sees_the_board_as_its_own() -> None:
    game = TicTacToeEnvironment()
    first = game.reset(NOTHING, seed=0)
    second = move(game, "5")
    third = move(game, "1")
    assert [(o.role, o.messages[0].content) for o in (first, second, third)] == [
        ("first", "123456789"),
        ("second", "1234o6789"),
        ("first", "o234x6789"),
    ]


def test_three_in_a_row_is_worth_one_and_the_opposite_to_the_other() -> None:
    game = TicTacToeEnvironment()
    game.reset(NOTHING, seed=0)
    end = move(game, "1", "4", "2", "5", "3")
    assert end.terminated
    assert end.reward is None
    assert end.info["rewards"] == {"first": 1.0, "second": -1.0}


def test_a_full_board_without_three_in_a_row_is_a_draw() -> None:
    game = TicTacToeEnvironment()
    game.reset(NOTHING, seed=0)
    end = move(game, *"512846379")
    assert end.terminated
    assert end.info["rewards"] == {"first": 0.0, "second": 0.0}


def test_three_in_a_row_on_a_full_board_is_no_draw() -> None:
    game = TicTacToeEnvironment()
    game.reset(NOTHING, seed=0)
    assert not move(game, *"14256879").done
    assert move(game, "3").info["rewards"] == {"first": 1.0, "second": -1.0}


def test_whoever_plays_perfectly_never_loses_and_beats_chance() -> None:
    game = TicTacToeEnvironment(opponent="random")
    results = [played(game, seed, perfectly)[-1].reward for seed in range(40)]
    assert -1.0 not in results
    assert results.count(1.0) > 30


def test_perfect_play_of_both_is_a_draw() -> None:
    game = TicTacToeEnvironment(opponent="tests.recipes.test_tictactoe:perfectly")
    assert {played(game, seed, perfectly)[-1].reward for seed in range(6)} == {0.0}


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


def test_no_prompt_is_longer_than_24_bytes() -> None:
    game = TicTacToeEnvironment()
    boards = [message.content for seed in range(20) for heard in played(game, seed) for message in heard.messages]
    assert max(len(board) for board in boards) <= 10


def test_a_task_is_told_to_each_role_once() -> None:
    game = TicTacToeEnvironment()
    task = Task(id="0", messages=(Message(role="user", content="Win."),))
    heard = [game.reset(task, seed=0), *(move(game, square) for square in "123")]
    assert [observation.messages[0].content.startswith("Win.") for observation in heard] == [True, True, False, False]


def test_an_opponent_that_breaks_the_rules_is_an_error_and_no_result() -> None:
    game = TicTacToeEnvironment(opponent="tests.recipes.test_tictactoe:nonsense")
    with pytest.raises(ValueError, match="no free square"):
        played(game, 0)


def test_an_opponent_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="write self, random, module:function, or a mapping"):
        TicTacToeEnvironment(opponent="me")


def test_an_opening_follows_from_the_seed_and_the_role_from_the_moves_made() -> None:
    openings = [TicTacToeEnvironment(opening_moves=3).reset(NOTHING, seed=seed) for seed in range(60)]
    again = [TicTacToeEnvironment(opening_moves=3).reset(NOTHING, seed=seed) for seed in range(60)]
    assert openings == again
    made = [9 - len(free(opening.messages[0].content)) for opening in openings]
    assert set(made) == {0, 1, 2, 3}
    assert [opening.role for opening in openings] == [("first", "second")[moves % 2] for moves in made]
    assert len({opening.messages[0].content for opening in openings}) > 20


def test_an_opening_in_which_somebody_could_win_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 to 3"):
        TicTacToeEnvironment(opening_moves=5)
