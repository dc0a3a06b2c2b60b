"""TextArena's games through the adapter are the games themselves, move for move, whatever is played beside them."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from rlhf.env.adapters.textarena import TextArenaEnvironment
from rlhf.errors import ConfigError
from rlhf.types import Message, Observation, Task
from tests.pace import scaled


def tictactoe(shown: str, draws: random.Random) -> str:
    """One of the free squares that the board of TextArena's tic-tac-toe lists last."""
    listed = shown.rpartition("Available Moves:")[2]
    return draws.choice(re.findall(r"\[\d\]", listed))


def guess(shown: str, draws: random.Random) -> str:
    return f"[{draws.randint(1, 20)}]"


def nim(shown: str, draws: random.Random) -> str:
    """Something of the first pile that is not empty; sometimes a move that the game refuses."""
    piles = re.findall(r"pile (\d+): (\d+)", shown.rpartition("Current Pile")[2] or shown)
    filled = [pile for pile, left in piles if int(left)]
    return f"[{draws.choice(filled or ['0'])} {draws.randint(1, 2)}]"


def connect_four(shown: str, draws: random.Random) -> str:
    """Any column whose top is free in the board that is shown last."""
    top = shown.rpartition("-------------")[2].split()[:7]
    return f"[col {draws.choice([index for index, disk in enumerate(top) if disk == '.'])}]"


def poker(shown: str, draws: random.Random) -> str:
    """Any of the actions that the game of Kuhn lists last."""
    return draws.choice(re.findall(r"'(\[\w+\])'", shown.rpartition("available actions are:")[2]))


def blackjack(shown: str, draws: random.Random) -> str:
    return draws.choice(["[Hit]", "[Stand]"])


def dice(shown: str, draws: random.Random) -> str:
    return draws.choice(["[roll]", "[roll]", "[hold]"])


def three_in_a_square(shown: str, draws: random.Random) -> str:
    """One of the free squares that the larger board lists last."""
    return draws.choice(re.findall(r"\[\d+\]", shown.rpartition("Available Moves:")[2]))


pytestmark = pytest.mark.ecosystem

NOTHING = Task(id="0", messages=())
GAMES = [
    ("GuessTheNumber-v0", 1, guess),
    ("TicTacToe-v0", 2, tictactoe),
    ("TicTacToe-v0-train", 2, tictactoe),
    ("ConnectFour-v0", 2, connect_four),
    ("Nim-v0", 2, nim),
    ("KuhnPoker-v0-short", 2, poker),
    ("Blackjack-v0", 1, blackjack),
    ("ThreePlayerTicTacToe-v0", 3, three_in_a_square),
    ("PigDice-v0-50", 2, dice),
]
Player = Callable[[str, random.Random], str]
Played = tuple[list[tuple[int, str, str]], dict[int, float]]
"""`(seat, what it was shown, what it said)` of every turn, and the rewards by seat."""


def directly(game: str, seats: int, player: Player, seed: int) -> Played:
    draws, turns, done = random.Random(f"player {seed}"), [], False
    environment = importlib.import_module("textarena").make(game)  # read where it is not installed, too
    environment.reset(num_players=seats, seed=seed)
    while not done:
        seat, shown = environment.get_observation()
        reply = player(shown, draws)
        turns.append((seat, shown, reply))
        done, _ = environment.step(reply)
    rewards, _ = environment.close()
    return turns, {seat: float(reward) for seat, reward in rewards.items()}


def through_the_adapter(game: str, seats: int, player: Player, seed: int) -> Played:
    draws, turns = random.Random(f"player {seed}"), []
    environment = TextArenaEnvironment(game, players=seats)
    observation = environment.reset(NOTHING, seed=seed)
    while not observation.done:
        shown = observation.messages[0].content
        reply = player(shown, draws)
        turns.append((environment.spec.roles.index(observation.role), shown, reply))
        observation = environment.step(Message(role="assistant", content=reply))
    return turns, {environment.spec.roles.index(role): value for role, value in observation.info["rewards"].items()}


@pytest.mark.parametrize(("game", "seats", "player"), GAMES)
def test_a_game_through_the_adapter_is_the_game_itself_move_for_move(game: str, seats: int, player: Player) -> None:
    for seed in range(10):
        assert through_the_adapter(game, seats, player, seed) == directly(game, seats, player, seed)


def test_64_games_that_start_at_once_draw_from_streams_of_their_own() -> None:
    alone = [directly("GuessTheNumber-v0", 1, guess, seed) for seed in range(64)]
    together = Barrier(64)

    def play(seed: int) -> Played:
        together.wait(scaled(30))
        return through_the_adapter("GuessTheNumber-v0", 1, guess, seed)

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(play, range(64))) == alone
    assert len({str(rewards) for _, rewards in alone}) > 1


def test_what_a_game_draws_at_a_step_depends_on_its_seed_alone() -> None:
    def boards(disturbed: bool) -> list[str]:
        environment = TextArenaEnvironment("2048-v0", players=1)
        environment.reset(NOTHING, seed=4)
        seen = []
        for move in ("[up]", "[left]", "[down]", "[right]") * 2:
            if disturbed:
                random.seed(99)
            seen.append(environment.step(Message(role="assistant", content=move)).messages[0].content)
        return seen

    assert boards(disturbed=True) == boards(disturbed=False)


def test_a_game_leaves_the_random_numbers_of_the_process_as_they_were() -> None:
    before = random.getstate()
    TextArenaEnvironment("GuessTheNumber-v0", players=1).reset(NOTHING, seed=4)
    assert random.getstate() == before


def against(opponent: str, seat: int, seed: int) -> list[Observation]:
    environment = TextArenaEnvironment("TicTacToe-v0", opponent=f"{__name__}:{opponent}", seat=seat)
    draws, observations = random.Random(f"player {seed}"), [environment.reset(NOTHING, seed=seed)]
    assert environment.spec.roles == ("agent",)
    while not observations[-1].done:
        reply = tictactoe(observations[-1].messages[0].content, draws)
        observations.append(environment.step(Message(role="assistant", content=reply)))
    return observations


@pytest.mark.parametrize("seat", [0, 1])
def test_against_a_fixed_opponent_there_is_one_role_and_its_reward(seat: int) -> None:
    ends = [against("tictactoe", seat, seed)[-1] for seed in range(20)]
    assert {observation.role for observation in ends} == {"agent"}
    assert all(observation.info["rewards"] == {"agent": observation.reward} for observation in ends)
    assert {observation.reward for observation in ends} >= {1.0, -1.0}


def test_a_fixed_opponent_plays_the_same_game_for_the_same_seed() -> None:
    assert against("tictactoe", 1, 3) == against("tictactoe", 1, 3)


def test_in_self_play_roles_take_turns_and_rewards_come_for_each_at_the_end() -> None:
    task = Task(id="0", messages=(Message(role="user", content="Play well."),))
    environment = TextArenaEnvironment("TicTacToe-v0")
    observation, seen = environment.reset(task, seed=0), []
    for move in "03142":
        seen.append((observation.role, observation.messages[0].content.startswith("Play well.")))
        assert observation.reward is None
        observation = environment.step(Message(role="assistant", content=f"[{move}]"))
    assert seen == [
        ("player_0", True),
        ("player_1", True),
        ("player_0", False),
        ("player_1", False),
        ("player_0", False),
    ]
    assert observation.terminated
    assert observation.info["rewards"] == {"player_0": 1.0, "player_1": -1.0}


def test_a_raw_game_shows_what_was_said_since_ones_last_turn() -> None:
    environment = TextArenaEnvironment("TicTacToe-v0-raw")
    environment.reset(NOTHING, seed=0)
    environment.step(Message(role="assistant", content="[4]"))
    heard = environment.step(Message(role="assistant", content="[0]")).messages[0].content
    assert "[Player 1] [0]" in heard
    assert "You are Player 0" not in heard
    assert "[4]" not in heard.splitlines()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"id": "NoSuchGame-v0"}, "no game NoSuchGame-v0"),
        ({"id": "TicTacToe-v0", "seat": 2}, "seats 0 to 1"),
        ({"id": "TicTacToe-v0", "opponent": f"{__name__}:nobody"}, "cannot be imported"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TextArenaEnvironment(**arguments)  # type: ignore[arg-type]
