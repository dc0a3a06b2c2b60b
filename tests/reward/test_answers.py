"""The reward `math` gives the number that a careful reader gives: one table of references and replies, by kind."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.answers import Pair, own_pairs, reported_pairs

BY_KIND: defaultdict[str, list[Pair]] = defaultdict(list)
for _pair in own_pairs():
    BY_KIND[_pair.kind].append(_pair)


@pytest.mark.parametrize("kind", BY_KIND)
def test_the_number_is_that_of_a_careful_reader(kind: str) -> None:
    assert [(pair.gold, pair.reply, pair.given) for pair in BY_KIND[kind] if pair.given != pair.verdict] == []


def test_of_the_reported_pairs_no_wrong_one_earns_and_at_most_three_right_ones_are_refused() -> None:
    given = [(pair, pair.given) for pair in reported_pairs()]
    assert [pair for pair, number in given if number and not pair.verdict] == []
    assert len([pair for pair, number in given if pair.verdict and not number]) <= 3
    assert len([pair for pair, number in given if number is None]) <= 1
