"""A key or a value that once had another name is refused, and the refusal says the new name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf.config import known_keys, load_piece
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe, recipe_from
from rlhf.recipe.renamed import RENAMED_KEYS, RENAMED_PIECES, RENAMED_VALUES
from rlhf.recipe.schema import Recipe

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
VALUES = [(key, old, new) for key, values in RENAMED_VALUES.items() for old, new in values.items()]


def nested(key: str, value: Any) -> dict[str, Any]:
    """`{a: {b: value}}` of `a.b`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize("old", RENAMED_KEYS)
def test_every_renamed_key_is_called_by_its_new_name_in_a_recipe_and_in_an_override(old: str) -> None:
    told = f"{old} is called {RENAMED_KEYS[old]}"
    for refused in (lambda: recipe_from(nested(old, 1)), lambda: load_recipe(QUICKSTART, [f"{old}=1"])):
        with pytest.raises(ConfigError) as error:
            refused()
        assert told in str(error.value).split("; ")


@pytest.mark.parametrize("old", [key for key in RENAMED_KEYS if key.startswith("reward.")])
def test_a_part_of_a_reward_has_the_keys_of_a_reward(old: str) -> None:
    part, leaves = "reward.parts.a_name", old.removeprefix("reward")
    new = RENAMED_KEYS[old].removeprefix("reward")
    with pytest.raises(ConfigError, match=rf"^{part}{leaves} is called {part}{new}$"):
        recipe_from(nested(part + leaves, 1))


def test_old_keys_are_gone_and_new_ones_are_there() -> None:
    known = set(known_keys(Recipe))
    assert not known & set(RENAMED_KEYS)
    arguments = {key for key in known if key.endswith(".arguments")}  # which may have any key
    assert {new for new in RENAMED_KEYS.values() if new.rpartition(".")[0] not in arguments} <= known


@pytest.mark.parametrize(("old", "new"), RENAMED_PIECES.items())
def test_a_function_or_class_that_recipes_name_is_called_by_its_new_name(old: str, new: str) -> None:
    assert load_piece(new, "the new name") is not None
    with pytest.raises(ConfigError, match=f"^environment.arguments.opponent: {old} is called {new}$"):
        load_recipe(QUICKSTART, ["environment.environment=a:B", f"environment.arguments.opponent={old}"])


def test_all_renamed_keys_of_a_recipe_are_told_at_once_and_those_within_them_too() -> None:
    old = {"players": 4}, {"publish": {"backend": "gloo", "drill": False}}
    with pytest.raises(ConfigError) as error:
        recipe_from({"rollout": old[0], "trainer": old[1]})
    assert str(error.value).split("; ") == [
        "rollout.players is called rollout.max_concurrent_groups",
        "trainer.publish is called trainer.weight_sync",
        "trainer.publish.drill is called trainer.weight_sync.verify_at_start",
    ]


def test_an_old_key_within_a_part_of_the_new_name_is_known_too() -> None:
    with pytest.raises(ConfigError, match=r"^trainer\.weight_sync\.drill is called trainer\.weight_sync\.verify_at"):
        load_recipe(QUICKSTART, ["trainer.weight_sync.drill=false"])


@pytest.mark.parametrize(("key", "old", "new"), VALUES)
def test_every_renamed_value_is_called_by_its_new_name(key: str, old: str, new: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: {old} is called {new}$"):
        load_recipe(QUICKSTART, ["environment.environment=a:B", f"{key}={old}"])


def test_arguments_of_your_own_may_have_any_name() -> None:
    given = json.dumps({"environment": "a:B", "arguments": {"players": 2, "cassette": {"publish": 1}}})
    loaded = load_recipe(QUICKSTART, ["reward.kind=environment", f"environment={given}"])
    assert loaded.recipe.environment is not None
    assert loaded.recipe.environment.arguments["players"] == 2


def test_the_list_of_changes_has_every_renamed_key_and_value() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    rows = [
        *RENAMED_KEYS.items(),
        *RENAMED_PIECES.items(),
        *((f"{key}: {old}", f"{key}: {new}") for key, old, new in VALUES),
    ]
    assert [row for row in rows if "| `{}` | `{}` |".format(*row) not in changes] == []
