"""What a tiny model is warmed up on: conversations of a function that the recipe names, checked one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlhf.controller.start_model import Lessons, lessons_of
from rlhf.errors import ConfigError, DataError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.preflight import check_pieces
from rlhf.recipe.schema import Recipe
from rlhf.types import Message
from tests.small_tasks import sorting


def echoes(count: int, seed: int, *, word: str = "hello") -> Iterator[list[Message]]:
    for number in range(count):
        said = f"{word} {seed} {number}"
        yield [Message(role="user", content=said), Message(role="assistant", content=said)]


def too_few(count: int, seed: int) -> Iterator[list[Message]]:
    return echoes(count - 1, seed)


def questions(count: int, seed: int) -> list[list[Message]]:
    return [[Message(role="user", content="?")]] * count


def texts(count: int, seed: int) -> list[str]:
    return ["hello"] * count


def nothing(count: int, seed: int) -> None:
    """Nothing is returned."""


def recipe(function: str, **arguments: Any) -> Recipe:
    warmup = {"demonstrations": f"{__name__}:{function}", "arguments": arguments, "updates": 2, "batch_size": 3}
    return recipe_from({"seed": 7, "model": {"tiny": {}, "warmup": warmup}, "data": {"train": sorting()}}).recipe


def lessons(function: str, **arguments: Any) -> Lessons:
    made = lessons_of(recipe(function, **arguments))
    assert made is not None
    return made


def test_the_function_makes_as_many_as_the_warm_up_sees_from_the_recipe_s_seed() -> None:
    said = [[message.content for message in one] for one in lessons("echoes", word="hi").conversations]
    assert said == [[f"hi 7 {number}"] * 2 for number in range(6)]


def test_other_conversations_are_another_start_model() -> None:
    assert lessons("echoes").decides == lessons("echoes").decides
    assert lessons("echoes").decides != lessons("echoes", word="hi").decides


def test_a_recipe_without_a_warm_up_shows_nothing() -> None:
    assert lessons_of(recipe_from({"model": {"tiny": {}}, "data": {"train": sorting()}}).recipe) is None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("too_few", "which returned only 5 of 6 conversations"),
        ("questions", "a conversation is a list of rlhf.types.Message, of which the assistant's are imitated"),
        ("texts", "which gave 'hello'; a conversation is a list"),
        ("nothing", "which returned None, not conversations"),
    ],
)
def test_what_shows_nothing_to_imitate_is_refused_in_one_line(function: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        lessons(function)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("absent", {}, r"model\.warmup\.demonstrations is .*:absent, which cannot be imported"),
        ("echoes", {"words": "hi"}, "'words'; it takes count, seed, word"),
        ("echoes", {"seed": 3}, "arguments has seed, which the run sets itself"),
    ],
)
def test_what_cannot_be_called_is_found_before_anything_starts(
    function: str, arguments: dict[str, Any], message: str
) -> None:
    check_pieces(recipe("echoes"))
    with pytest.raises(ConfigError, match=message):
        check_pieces(recipe(function, **arguments))
