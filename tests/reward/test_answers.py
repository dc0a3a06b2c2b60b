"""The reward `math` gives the number that a careful reader gives: tables of references and replies.

A row of `answers.jsonl` has a reference `gold` and replies that are `right`, `wrong`, or to `none` of which a number
can be given; those that are no whole replies stand in a box. `reported_answers.jsonl` holds users' reports.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import NoReference
from rlhf.reward.math import math

VERDICTS = {"right": 1.0, "right_replies": 1.0, "wrong": 0.0, "wrong_replies": 0.0, "none": None}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()]


def given(gold: str, reply: str) -> float | None:
    """The number that the reward gives."""
    try:
        return math(reply, {"answer": gold})
    except NoReference:
        return None


BY_KIND: defaultdict[str, list[tuple[str, str, float | None]]] = defaultdict(list)
for _row in rows("answers.jsonl"):
    for _key, _verdict in VERDICTS.items():
        for _text in _row.get(_key, ()):
            _reply = _text if _key.endswith("replies") else f"So it is \\boxed{{{_text}}}."
            BY_KIND[_row["kind"]].append((_row["gold"], _reply, _verdict))


@pytest.mark.parametrize("kind", BY_KIND)
def test_the_number_is_that_of_a_careful_reader(kind: str) -> None:
    assert [(gold, reply, given(gold, reply)) for gold, reply, verdict in BY_KIND[kind]] == BY_KIND[kind]


def test_of_the_reported_pairs_no_wrong_one_earns_and_at_most_three_right_ones_are_refused() -> None:
    pairs = [(row["right"], given(row["gold"], row["answer"])) for row in rows("reported_answers.jsonl")]
    assert [number for right, number in pairs if number and not right] == []
    assert len([number for right, number in pairs if right and not number]) <= 3
    assert len([number for _, number in pairs if number is None]) <= 1
