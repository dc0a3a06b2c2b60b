"""The arithmetic of the end-to-end benchmark."""

from __future__ import annotations

import pytest

from benchmarks.end_to_end.measurement import Measurement, best, ratio, result, summarize, table
from benchmarks.end_to_end.our_side import steady_state
from benchmarks.end_to_end.workload import SAMPLES_PER_UPDATE, reward
from rlhf.metrics import Span


def measured(side: str, seconds: float, precision: str = "float32", **phases: float) -> Measurement:
    return Measurement(side=side, precision=precision, update_seconds=seconds, phase_seconds=phases)


RUNS = [
    measured("trl, 1 thread", 30.0, train=20.0),
    measured("trl, 2 threads", 12.0, train=10.0),
    measured("ours, staleness 0", 11.0, train=6.0),
    measured("ours, staleness 1", 7.0, train=6.0),
    measured("trl, 2 threads", 20.0, train=12.0),
    measured("ours, staleness 0", 9.0, train=8.0),
    measured("ours, staleness 1", 9.0, train=8.0),
]


def test_samples_per_second_count_all_samples_of_an_update() -> None:
    assert measured("ours", 8.0).samples_per_second == SAMPLES_PER_UPDATE / 8


def test_a_side_is_summarized_by_the_medians_of_its_runs() -> None:
    assert [(m.side, m.update_seconds, m.phase_seconds) for m in summarize(RUNS)] == [
        ("trl, 1 thread", 30.0, {"train": 20.0}),
        ("trl, 2 threads", 16.0, {"train": 11.0}),
        ("ours, staleness 0", 10.0, {"train": 7.0}),
        ("ours, staleness 1", 8.0, {"train": 7.0}),
    ]


def test_precisions_are_never_mixed() -> None:
    summary = summarize(
        [*RUNS, measured("trl, 1 thread", 1.0, "bfloat16"), measured("ours, staleness 0", 0.5, "bfloat16")]
    )
    assert ratio(summary, "float32") == 2.0
    assert ratio(summary, "bfloat16") == 2.0
    assert best(summary, "trl", "float32").side == "trl, 2 threads"


def test_the_result_has_a_ratio_for_each_precision_that_ran() -> None:
    found = result(summarize(RUNS), {"cores": [0, 1]})
    assert found["ratio_fp32"] == 2.0
    assert "ratio_bf16" not in found
    assert found["cores"] == [0, 1]
    assert found["sides"][0]["samples_per_second"] == round(SAMPLES_PER_UPDATE / 30, 2)


def test_the_table_shows_a_dash_for_what_a_side_does_not_have() -> None:
    trl = next(line for line in table(summarize(RUNS)).splitlines() if line.startswith("| trl, 2"))
    assert [cell.strip() for cell in trl.split("|")[3:-1]] == ["32.0", "16.00 s", "-", "-", "11.00 s", "-", "-"]


def test_only_the_measured_updates_count_and_overlapping_groups_count_once() -> None:
    spans = [Span(name="publish", start=start, seconds=1.0) for start in (0.0, 9.0, 19.0, 29.0)]
    spans += [Span(name="train", start=start, seconds=4.0) for start in (5.0, 15.0, 25.0)]
    spans += [Span(name="wait", start=start, seconds=3.0) for start in (1.0, 11.0, 21.0)]
    spans += [Span(name="generate", start=8.0, seconds=4.0), Span(name="generate", start=11.0, seconds=3.0)]
    found = steady_state(spans, warmup=1, updates=1)
    assert found["update_seconds"] == pytest.approx(10.0)
    assert found["phase_seconds"] == pytest.approx(
        {"generate": 4.0, "publish": 1.0, "train": 4.0, "wait": 3.0, "controller": 2.0}
    )


def test_the_reward_differs_between_replies() -> None:
    assert reward("a1\n ", {}) == 2 / 32
    assert reward("é!", {}) == 0.0
