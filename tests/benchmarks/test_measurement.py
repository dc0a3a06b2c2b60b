"""The arithmetic of the end-to-end benchmark."""

from __future__ import annotations

import pytest

from benchmarks.end_to_end.figures import FIGURES, figures, missed
from benchmarks.end_to_end.measurement import Measurement, best, summarize
from benchmarks.end_to_end.our_side import steady_state
from benchmarks.end_to_end.workload import Lengths, Precision
from rlhf.tracing import Span


def measured(
    side: str, seconds: float, precision: Precision = "float32", lengths: Lengths = "equal", **phases: float
) -> Measurement:
    return Measurement(side=side, lengths=lengths, precision=precision, update_seconds=seconds, phase_seconds=phases)


RUNS = [
    measured("trl, 1 thread", 30.0, train=20.0),
    measured("trl, 2 threads", 12.0, train=10.0),
    measured("ours, staleness 0", 11.0, train=6.0),
    measured("ours, staleness 1", 7.0, train=6.0),
    measured("trl, 2 threads", 20.0, train=12.0),
    measured("ours, staleness 0", 9.0, train=8.0),
    measured("ours, staleness 1", 9.0, train=8.0),
]


EVERYTHING = summarize(
    [
        *RUNS,
        measured("trl, 2 threads", 1.0, "bfloat16"),
        measured("ours, staleness 0", 0.5, "bfloat16"),
        measured("trl, 2 threads", 40.0, lengths="long_tail"),
        measured("ours, staleness 0", 10.0, lengths="long_tail"),
    ]
)


def test_the_fastest_side_of_each_is_compared_and_neither_lengths_nor_precisions_are_mixed() -> None:
    trl = best(EVERYTHING, "trl", "equal", ["float32"])
    assert trl is not None
    assert trl.side == "trl, 2 threads"
    assert figures(EVERYTHING) == {
        "ratio_fp32": 2.0,
        "ratio_bf16": 2.0,
        "ratio_fp32_masters": 32.0,
        "ratio_long_tail": 4.0,
    }


def test_a_required_figure_that_is_too_low_is_missed_and_one_not_measured_is_not() -> None:
    assert missed(figures(EVERYTHING)) == ["ratio_long_tail is 4, required 5"]
    assert missed({figure.name: figure.required or 0.0 for figure in FIGURES}) == []
    assert missed({}) == []


def test_only_the_measured_updates_count_and_overlapping_groups_count_once() -> None:
    spans = [Span(name="weight_sync", start=start, seconds=1.0) for start in (0.0, 9.0, 19.0, 29.0)]
    spans += [Span(name="train", start=start, seconds=4.0) for start in (5.0, 15.0, 25.0)]
    spans += [Span(name="wait", start=start, seconds=3.0) for start in (1.0, 11.0, 21.0)]
    spans += [Span(name="generate", start=8.0, seconds=4.0), Span(name="generate", start=11.0, seconds=3.0)]
    found = steady_state(spans, warmup=1, updates=1)
    assert found["update_seconds"] == pytest.approx(10.0)
    assert found["phase_seconds"] == pytest.approx(
        {"generate": 4.0, "weight_sync": 1.0, "train": 4.0, "wait": 3.0, "controller": 2.0}
    )
