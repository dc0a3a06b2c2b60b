"""The canary's limits in bfloat16, measured on the weights: no healthy engine is refused, and faults are caught."""

from __future__ import annotations

import pytest

from benchmarks.canary.sweep import ENGINES, FAULTS, measure


@pytest.mark.parametrize(
    ("layers", "logits", "start_check"),
    [(2, 30.0, False), (2, 30.0, True), (12, 12.0, True), pytest.param(48, 12.0, False, marks=pytest.mark.slow)],
)
def test_rounding_is_never_refused_and_every_planted_fault_is(layers: int, logits: float, start_check: bool) -> None:
    cell = measure(layers, logits, start_check=start_check)
    assert (cell.refused, cell.missed) == ((), ())
    assert cell.used < 0.8, f"{cell.worst} needs {cell.used:.2f} of the limits"
    assert cell.beyond > 1.2, f"{cell.least} is {cell.beyond:.2f} times the limits"
    assert cell.used_of_few < 0.9
    assert cell.missed_by_few["embedding shifted by a row"] == cell.missed_by_few["one layer is another"] == 0
    assert len(ENGINES) == 7
    assert len(FAULTS) == 6


def test_an_engine_that_keeps_the_start_weights_is_refused_within_a_few_steps() -> None:
    assert 0 < measure(2, 12.0, start_check=False).stale_after <= 32
