"""GEM's environments through the adapter are the environments themselves."""

from __future__ import annotations

import importlib
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlhf.env.adapters.gem import GemEnvironment
from rlhf.errors import ConfigError
from rlhf.types import Message, Task

pytestmark = pytest.mark.ecosystem

NOTHING = Task(id="0", messages=())
GUESSES = ["\\boxed{5}", "\\boxed{8}", "\\boxed{2}", "\\boxed{7}"]
Turns = list[tuple[str, float, bool, bool]]


def directly(seed: int) -> Turns:
    game = importlib.import_module("gem").make("game:GuessTheNumber-v0-easy")
    game.reset(seed=seed)
    turns: Turns = []
    for guess in GUESSES:
        seen, reward, terminated, truncated, info = game.step(guess)
        turns.append((f"{seen}\n{info['suffix']}", reward, terminated, truncated))
        if terminated or truncated:
            break
    return turns


def through_the_adapter(seed: int) -> Turns:
    game = GemEnvironment("game:GuessTheNumber-v0-easy")
    game.reset(NOTHING, seed=seed)
    turns: Turns = []
    for guess in GUESSES:
        heard = game.step(Message(role="assistant", content=guess))
        turns.append((heard.messages[0].content, heard.reward or 0.0, heard.terminated, heard.truncated))
        if heard.done:
            break
    return turns


def test_a_game_through_the_adapter_is_the_game_itself_also_beside_others() -> None:
    alone = [directly(seed) for seed in range(32)]
    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(through_the_adapter, range(32))) == alone
    assert len({len(turns) for turns in alone}) > 1


def test_what_is_asked_names_the_rules_and_ends_with_the_suffix() -> None:
    state = random.getstate()
    first = GemEnvironment("game:GuessTheNumber-v0-easy").reset(NOTHING, seed=0)
    assert first.messages[0].content.startswith("You are playing Guess The Number.")
    assert first.messages[0].content.endswith("Enter your next guess.")
    assert random.getstate() == state


def test_an_environment_that_gem_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="gem has no environment game:NoSuch-v0"):
        GemEnvironment("game:NoSuch-v0")
