"""Tasks that a function of one's own makes: taken one by one, and refused in one line where they are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from rlhf.chat.image_reader import noise_image
from rlhf.config import build
from rlhf.data import own_tasks
from rlhf.data.config import DatasetConfig
from rlhf.data.preference import PreferencePair, Useless
from rlhf.data.sources import load_pairs, load_tasks
from rlhf.data.tasks import load_sets
from rlhf.errors import ConfigError, DataError, UserError
from rlhf.images import IMAGE_MARK, Image
from rlhf.recipe.preflight import check_dataset
from rlhf.types import Message, Task

ASKED = (Message(role="user", content="2 + 2?"),)
PAIRS = {"chosen_column": "good", "rejected_column": "bad"}
no_function = 3


OTHER = replace(noise_image((4, 4)), sha256="7")


def task(name: Any = "0", **parts: Any) -> Task:
    return Task(**{"id": name, "messages": ASKED, "answer": "4", **parts})


def numbered(*, rows: int, answer: str = "4") -> Iterator[Task]:
    return (task(str(number), answer=answer) for number in range(rows))


def endless() -> Iterator[Task]:
    return (task(str(number)) for number in count())


def breaks(*, at_once: bool) -> Iterator[Task]:
    if at_once:
        raise KeyError("no such file")
    return (task(str(1 // (1 - number))) for number in range(3))


def given(*, what: str) -> Any:
    return WRONG[what][0]


def pairs() -> list[Task]:
    replies = [("4", "5"), ("4", "4"), ("4", " ")]
    return [task(str(place), row={"good": good, "bad": bad}) for place, (good, bad) in enumerate(replies)]


def numbers() -> list[Task]:
    return [task(row={"good": 4, "bad": "5"})]


def silent() -> list[Task]:
    replies = {"good": "4", "bad": "5"}
    return [task(row=replies), task("1", messages=(), row=replies)]


WRONG: dict[str, tuple[Any, str]] = {
    "number": (3, "returned 3; it must return tasks"),
    "text": ("tasks", "returned 'tasks'; it must return tasks"),
    "mapping": ({"0": task()}, "it must return tasks"),
    "nothing": (None, "returned None; it must return tasks"),
    "no task": ([], "made no task; it must make at least one"),
    "a row": ([task(), {"question": "2 + 2?"}], r"task 2 of .* is .*; it must be an rlhf\.types\.Task"),
    "a chat": ([task(messages=[{"role": "user", "content": "x"}])], "task 1 of .*: messages is .*a tuple of"),
    "a number for a name": ([task(7)], "id and answer must be text, they are 7 and '4'"),
    "a number for an answer": ([task(answer=4)], "id and answer must be text, they are '0' and 4"),
    "an image by another hash": (
        [task(messages=(Message(role="user", content=IMAGE_MARK, images=(OTHER,)),))],
        "task 1 of .*: an image has a sha256 that is not that of its data",
    ),
    "an image without a mark": (
        [task(messages=(Message(role="user", content="what?", images=(Image(sha256="0", data=b""),)),))],
        "task 1 of .*: a message has not one rlhf.images.IMAGE_MARK in its content for each",
    ),
    "a list for a row": ([task(row=["4"])], "row is .*; it must be a mapping"),
}


def dataset(function: str, **settings: Any) -> DatasetConfig:
    return build(DatasetConfig, {"tasks": f"{__name__}:{function}", **settings})


def test_the_tasks_are_those_of_the_function_in_its_order() -> None:
    tasks = load_tasks(dataset("numbered", arguments={"rows": 3, "answer": "four"}))
    assert tasks == [task(str(number), answer="four") for number in range(3)]


def test_a_limit_takes_the_first_also_where_there_is_no_end() -> None:
    assert [one.id for one in load_tasks(dataset("endless", limit=2))] == ["0", "1"]


def test_tasks_without_an_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_tasks, "MOST", 10)
    with pytest.raises(DataError, match="made more than 10 tasks; let it end, or give limit"):
        load_tasks(dataset("endless"))
    assert len(load_tasks(dataset("numbered", arguments={"rows": 10}))) == 10


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_task_is_refused_in_one_line(what: str) -> None:
    with pytest.raises(DataError, match=WRONG[what][1]) as caught:
        load_tasks(dataset("given", arguments={"what": what}))
    assert "\n" not in str(caught.value)
    assert f"{__name__}:given" in str(caught.value)


@pytest.mark.parametrize(
    ("at_once", "told"), [(True, "failed: KeyError: 'no such file'"), (False, "failed: ZeroDivisionError")]
)
def test_a_function_that_raises_is_named_in_one_line(at_once: bool, told: str) -> None:
    with pytest.raises(DataError, match=rf"test_own_tasks:breaks {told}"):
        load_tasks(build(DatasetConfig, {"tasks": f"{__name__}:breaks", "arguments": {"at_once": at_once}}))


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("absent", {}, r"data\.eval\.tasks is .*:absent, which cannot be imported"),
        ("no_function", {}, "which is 3, not a function"),
        ("numbered", {}, "missing a required argument: 'rows'; it takes rows, answer"),
        ("numbered", {"row": 3}, "it takes rows, answer"),
    ],
)
def test_before_a_run_the_function_is_looked_at_and_not_called(
    function: str, arguments: dict[str, Any], message: str
) -> None:
    check_dataset(dataset("numbered", arguments={"rows": 0}), "data.train")
    with pytest.raises(ConfigError, match=message) as caught:
        check_dataset(dataset(function, arguments=arguments), "data.eval")
    assert "\n" not in str(caught.value)


def test_a_task_asks_something_where_no_environment_does() -> None:
    sets = {"data.train": dataset("silent")}
    assert len(load_sets(sets)["data.train"]) == 2
    with pytest.raises(DataError, match=r"data\.train: task 1 has no messages, and the recipe has no environment"):
        load_sets(sets, asks=True)
    with pytest.raises(DataError, match=r"task 2 of .* has no prompt: a pair is two replies to one prompt"):
        load_pairs(dataset("silent", **PAIRS))


def test_a_column_of_replies_is_one_of_the_task_s_row() -> None:
    told = "task 1 of .* has no column 'reply' .*; name the right one with response_column"
    with pytest.raises(DataError, match=told):
        load_tasks(dataset("numbered", arguments={"rows": 1}, response_column="reply"))


def test_two_replies_in_a_row_make_a_pair_and_those_that_teach_nothing_are_counted() -> None:
    found = load_pairs(dataset("pairs", **PAIRS))
    assert found.pairs == (PreferencePair(prompt=ASKED, chosen="4", rejected="5"),)
    assert found.dropped == {Useless.SAME: 1, Useless.EMPTY: 1}


@pytest.mark.parametrize(
    ("function", "columns", "message"),
    [
        ("pairs", {"chosen_column": "best", "rejected_column": "bad"}, "task 1 of .* has no column 'best'"),
        ("numbers", PAIRS, "task 1 of .*: column 'good' must be text, but reads 4"),
    ],
)
def test_a_pair_that_is_none_is_refused_in_one_line(function: str, columns: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_pairs(dataset(function, **columns))
