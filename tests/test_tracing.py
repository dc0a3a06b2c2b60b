"""Spans and sums."""

from __future__ import annotations

import pytest

from rlhf.tracing import Clock, CurrentSpan, Span, busy_seconds, reduce, span, within


class FakeTime:
    """A steady clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_span_takes_what_its_block_takes_and_knows_when_it_began():
    steady = FakeTime()
    clock = Clock(wall=lambda: 1_000_000.0, steady=steady)
    steady.now += 2
    with within(CurrentSpan(clock)), span("train", update=1):
        steady.now += 3
    assert clock.drain() == [Span(name="train", start=1_000_002.0, seconds=3.0, attributes={"update": 1})]
    assert clock.drain() == []
    assert clock.elapsed_seconds == 5.0


def test_a_block_that_raises_leaves_its_span():
    clock = Clock()
    with pytest.raises(ValueError, match="no"), within(CurrentSpan(clock)), span("weight_sync"):
        raise ValueError("no")
    assert [one.name for one in clock.drain()] == ["weight_sync"]


def test_episodes_played_side_by_side_count_once():
    spans = [
        Span(name="generate", start=0, seconds=4),
        Span(name="generate", start=1, seconds=2),
        Span(name="generate", start=3, seconds=3),
        Span(name="generate", start=10, seconds=1),
        Span(name="train", start=2, seconds=1),
    ]
    assert busy_seconds(spans) == {"generate": 7.0, "train": 1.0}


def test_metrics_add_up_before_they_are_divided():
    assert reduce([{"loss": (3.0, 1)}, {"loss": (1.0, 3), "kl": (0.5, 2)}]) == {"loss": 1.0, "kl": 0.25}


def test_a_metric_of_nothing_has_no_number():
    assert reduce([{"clip": (0.0, 0)}]) == {}
