"""The ideal time of updates, from recorded durations."""

from __future__ import annotations

import pytest

from benchmarks.overlap.command import ENGINES, GROUPS, PLACES, ideal_seconds


@pytest.mark.parametrize(("trained", "seconds"), [(3.0, 6.0), (1.0, 5.0)], ids=["training", "sampling"])
def test_the_ideal_run_hides_the_shorter_behind_the_longer(trained: float, seconds: float) -> None:
    work = ENGINES * PLACES / 2
    sampled = {f"train-{ordinal}-{n}": n * work / GROUPS for ordinal in range(4 * GROUPS) for n in (2, 3)}
    assert ideal_seconds(sampled, 4 * [trained], range(1, 3)) == pytest.approx(seconds)
