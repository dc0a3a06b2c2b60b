"""TextArena's games through a server that is a process of its own are the games themselves, move for move."""

from __future__ import annotations

import asyncio
import random

import pytest

from rlhf.env.client.servers import RemoteEnvironments
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.types import Observation, Task
from tests.env.adapters import players
from tests.env.adapters.served import connected, in_session, say, serving
from tests.env.adapters.test_textarena import Played, Player, directly
from tests.servers import Asked, nobody, scripted

pytestmark = pytest.mark.ecosystem

NOTHING = Task(id="0", messages=())
ADAPTER = "rlhf.env.adapters.textarena:TextArenaEnvironment"
GAMES = [
    ("TicTacToe-v0", 2, players.tictactoe),
    ("ConnectFour-v0", 2, players.connect_four),
    ("Nim-v0", 2, players.nim),
    ("KuhnPoker-v0-short", 2, players.poker),
    ("Blackjack-v0", 1, players.blackjack),
    ("ThreePlayerTicTacToe-v0", 3, players.three_in_a_square),
]


async def over_the_wire(
    environments: RemoteEnvironments, player: Player, seed: int, together: asyncio.Barrier | None = None
) -> Played:
    """A game in a session of its own, one player in all roles; with `together` all are reset at once."""

    async def play(session: Environment) -> Played:
        draws, turns = random.Random(f"player {seed}"), []
        if together is not None:
            await together.wait()
        observation = await session.reset(NOTHING, seed=seed)
        while not observation.done:
            shown = observation.messages[0].content
            reply = player(shown, draws)
            turns.append((roles.index(observation.role), shown, reply))
            observation = await say(session, reply)
        return turns, {roles.index(role): value for role, value in observation.info["rewards"].items()}

    roles = environments.spec.roles
    return await in_session(environments, play)


@pytest.mark.parametrize(("game", "seats", "player"), GAMES)
async def test_a_game_through_a_server_is_the_game_itself_move_for_move(game: str, seats: int, player: Player) -> None:
    with serving(ADAPTER, {"id": game, "players": seats}) as url:
        environments = await connected(url)
        played = [await over_the_wire(environments, player, seed) for seed in range(8)]
    assert played == [directly(game, seats, player, seed) for seed in range(8)]
    assert len({str(one) for one in played}) > 1


@pytest.mark.parametrize(
    ("game", "seats", "player"), [("GuessTheNumber-v0", 1, players.guess), ("PigDice-v0-50", 2, players.dice)]
)
async def test_64_games_that_are_reset_at_once_are_what_they_are_alone(game: str, seats: int, player: Player) -> None:
    together = asyncio.Barrier(64)
    with serving(ADAPTER, {"id": game, "players": seats}) as url:
        environments = await connected(url)
        games = (over_the_wire(environments, player, seed, together) for seed in range(64))
        async with asyncio.timeout(120):
            played = await asyncio.gather(*games)
    assert played == [directly(game, seats, player, seed) for seed in range(64)]
    assert len({str(rewards) for _, rewards in played}) > 1


def listed_first(asked: Asked) -> tuple[int, dict[str, object]]:
    """A frozen player that takes the first of the squares that the board lists."""
    shown = asked.json["messages"][-1]["content"]
    square = shown.rpartition("Available Moves:")[2].strip()[1:4]
    return 200, {"choices": [{"message": {"role": "assistant", "content": f"I take {square}"}}]}


def frozen(url: str) -> dict[str, object]:
    chat = {"kind": "chat", "url": f"{url}/v1", "model": "earlier", "last_n": 1, "seconds": 10}
    return {"id": "TicTacToe-v0", "seat": 1, "opponent": chat}


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_against_a_frozen_self_there_is_one_role_and_its_result(isolation: str) -> None:
    async def play(session: Environment) -> Observation:
        observation = await session.reset(NOTHING, seed=0)
        for move in "48":
            assert (observation.role, observation.done) == ("agent", False)
            observation = await say(session, f"[{move}]")
        return observation

    async with scripted(listed_first) as model:
        with serving(ADAPTER, frozen(model.url), "--isolation", isolation) as url:
            environments = await connected(url)
            assert environments.spec.roles == ("agent",)
            end = await in_session(environments, play)
    # it takes 0, 1 and 2, and the agent only has two moves
    assert len(model.asked) == 3
    assert (end.terminated, end.reward, end.info["rewards"]) == (True, -1.0, {"agent": -1.0})


async def test_a_frozen_self_that_does_not_answer_is_a_failure_that_names_it() -> None:
    with serving(ADAPTER, frozen(nobody())) as url:
        environments = await connected(url)
        with pytest.raises(EnvironmentFailed, match=r"raised: .*OpponentFailed: opponent earlier at .*: refused"):
            await in_session(environments, lambda session: session.reset(NOTHING, seed=0))
