"""The ideal schedule of recorded durations, and how they are sorted."""

from __future__ import annotations

import pytest

from benchmarks.overlap.ideal import BatchSeconds, by_batch, ideal_seconds, works


@pytest.mark.parametrize(("sampled", "seconds"), [(8.0, 30.0), (16.0, 40.0)], ids=["training", "sampling"])
def test_the_ideal_run_hides_the_shorter_behind_the_longer(sampled: float, seconds: float) -> None:
    assert ideal_seconds(10 * [BatchSeconds(sampled=sampled, trained=3.0)], places=4) == seconds


def test_sessions_are_sorted_by_the_update_of_their_group() -> None:
    sampled = {"train-0-0": 1.0, "train-2-0": 4.0, "train-1-1": 2.0}
    assert by_batch(sampled, [7.0, 8.0], groups=2) == [
        BatchSeconds(sampled=3.0, trained=7.0), BatchSeconds(sampled=4.0, trained=8.0),
    ]  # fmt: skip
    groups = works(sampled, {"train-0-0": 3.5}, 2, token_seconds=0.5)
    assert [[(one.tokens, one.environment_seconds) for one in group.episodes] for group in groups] == [
        [(2, 3.5)], [(4, 0.0)], [(8, 0.0)],
    ]  # fmt: skip
