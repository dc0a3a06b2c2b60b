"""Renamed keys and values of recipes: old names are refused, and the error gives the new name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from rlhf.config import flatten, key_of
from rlhf.errors import ConfigError

RENAMED_KEYS: Mapping[str, str] = {
    "cluster.learners": "cluster.learner_placement",
    "data.train.programs": "data.train.tasks",
    "data.train.programs.fold": "data.train.arguments.split",
    "data.train.sorting": "data.train.tasks",
    "data.train.sorting.fold": "data.train.arguments.split",
    "data.eval.programs": "data.eval.tasks",
    "data.eval.programs.fold": "data.eval.arguments.split",
    "data.eval.sorting": "data.eval.tasks",
    "data.eval.sorting.fold": "data.eval.arguments.split",
    "environment.cassette": "environment.recording",
    "environment.demonstrations": "model.warmup.demonstrations",
    "model.lora.publish": "model.lora.weight_sync",
    "reward.cassette": "reward.recording",
    "reward.code.requests": "reward.code.max_concurrent_requests",
    "reward.code.runs": "reward.code.max_concurrent_runs",
    "reward.http.first_pause_seconds": "reward.http.initial_backoff_seconds",
    "reward.http.longest_pause_seconds": "reward.http.max_backoff_seconds",
    "reward.http.open_seconds": "reward.http.reset_seconds",
    "reward.http.opens_after": "reward.http.failure_threshold",
    "reward.remote.shape": "reward.remote.api",
    "rollout.players": "rollout.max_concurrent_groups",
    "rollout.publish_timeout_seconds": "rollout.weight_sync_timeout_seconds",
    "trainer.loss.balance_coefficient": "trainer.loss.router_aux_loss_coefficient",
    "trainer.overlong.factor": "trainer.overlong.penalty_factor",
    "trainer.publish": "trainer.weight_sync",
    "trainer.publish.drill": "trainer.weight_sync.verify_at_start",
    "trainer.reward_model.centring": "trainer.reward_model.center_rewards_coefficient",
}
"""New names by old key. Keys of `reward` also apply to its `parts`, and keys of `data.train` and `data.eval` to their
sets."""
RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {
    "environment.isolation": {"own": "self_managed"},
    "model.attention": {"flash_attention_2": "sdpa"},
}
"""New values by key and old value."""
RENAMED_PIECES: Mapping[str, str] = {
    "rlhf.env.adding:chain_sum": "recipes.tasks.adding:chain_sum",
    "rlhf.env.demonstrations:calculator": "recipes.tasks.calculator:demonstrations",
    "rlhf.env.random_play:gymnasium": "recipes.tasks.random_play:gymnasium",
    "rlhf.env.random_play:tictactoe": "recipes.tasks.random_play:tictactoe",
    "rlhf.env.search:SearchEnvironment": "recipes.tasks.search:SearchEnvironment",
    "rlhf.env.tictactoe:TicTacToeEnvironment": "recipes.tasks.tictactoe:TicTacToeEnvironment",
    "rlhf.env.tictactoe:at_random": "recipes.tasks.tictactoe:at_random",
}
"""What functions and classes that recipes name are called, wherever in a recipe they stand."""
NAMED: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("reward", "parts"): ("reward",),
    ("data", "train"): ("data", "train"),
    ("data", "eval"): ("data", "eval"),
}
"""Places where a part's or set's name, or an index, is between two keys, with the preceding keys as in the tables."""


def renamed(error: ValidationError, within: str = "") -> str:
    """The new names of the unknown keys and refused values in `error`, in one line; empty where none was renamed.
    `within` is the part of a recipe that was validated, if it was not the whole."""
    outer = (within,) if within else ()
    return "; ".join(
        line for problem in error.errors() for line in _told(outer, key_of(problem), problem["type"], problem["input"])
    )


def check_pieces_are_here(values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a function or class that is called otherwise."""
    for key, value in flatten(values):
        if isinstance(value, str) and value in RENAMED_PIECES:
            raise ConfigError(f"{key}: {value} is called {RENAMED_PIECES[value]}")


def _told(outer: tuple[str, ...], key: tuple[str, ...], kind: str, given: Any) -> Iterator[str]:
    """The lines for one problem; for an unknown key also for the keys within it."""
    if kind == "extra_forbidden":
        for inner in ((), *_keys_within(given)):
            called = _new_key((*outer, *key, *inner))
            if called:
                yield f"{'.'.join((*key, *inner))} is called {'.'.join(called[len(outer) :])}"
    elif isinstance(given, str):
        values = (RENAMED_VALUES.get(".".join(place), {}) for place in _places((*outer, *key)))
        yield from (f"{'.'.join(key)}: {given} is called {found[given]}" for found in values if given in found)


def _keys_within(given: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(given, Mapping):
        for key, value in given.items():
            yield (str(key),)
            yield from ((str(key), *inner) for inner in _keys_within(value))


def _new_key(key: tuple[str, ...]) -> tuple[str, ...]:
    """The new name of a key at its path, empty where there is none. A key within a renamed one is looked up by the new
    name of the outer key as well."""
    for place in _places(key):
        for old, new in RENAMED_KEYS.items():
            part, _, leaf = old.rpartition(".")
            if ".".join(place) in (old, f"{RENAMED_KEYS.get(part, part)}.{leaf}"):
                olds, news = old.split("."), new.split(".")
                same = next((n for n, (a, b) in enumerate(zip(olds, news, strict=False)) if a != b), len(news))
                return (*key[: len(key) - len(olds) + same], *news[same:])
    return ()


def _places(key: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The forms under which the tables may list the key: unchanged, and without the name of a part or of a set."""
    yield key
    if key[:2] in NAMED:
        yield (*NAMED[key[:2]], *key[3:])
