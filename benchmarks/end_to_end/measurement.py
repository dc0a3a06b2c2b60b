"""What one run of one side gives, and what several of them say together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.end_to_end.workload import SAMPLES_PER_UPDATE, Lengths, Precision

PHASES = ("generate", "weight_sync", "train", "wait", "controller")
"""Where an update's seconds go. `generate` may overlap the rest; without it they add up to the update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Means over the measured updates of one run; seconds are wall time an update."""

    side: str
    lengths: Lengths
    precision: Precision
    update_seconds: float
    phase_seconds: Mapping[str, float]

    @property
    def samples_per_second(self) -> float:
        return SAMPLES_PER_UPDATE / self.update_seconds


def summarize(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One measurement for every side, lengths and precision, in the order of their first run: the medians of its
    runs."""
    runs: dict[tuple[str, Lengths, Precision], list[Measurement]] = {}
    for measurement in measurements:
        runs.setdefault((measurement.side, measurement.lengths, measurement.precision), []).append(measurement)
    return [_median(same) for same in runs.values()]


def best(
    measurements: Sequence[Measurement], system: str, lengths: Lengths, precisions: Sequence[Precision]
) -> Measurement | None:
    """The fastest of a system's sides (`trl, 1 thread`, `trl, 2 threads`); none if one of the precisions is missing."""
    sides = [m for m in measurements if m.side.startswith(system) and m.lengths == lengths]
    if not set(precisions) <= {m.precision for m in sides}:
        return None
    return min((m for m in sides if m.precision in precisions), key=lambda measurement: measurement.update_seconds)


def table(summary: Sequence[Measurement]) -> str:
    """A line a side, as Markdown. What a side does not have is a dash."""
    heads = ("side", "lengths", "precision", "samples/s", "update", *PHASES)
    rows = [_row(measurement) for measurement in sorted(summary, key=lambda m: (m.lengths, m.precision != "float32"))]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = (heads, tuple("-" * width for width in widths), *rows)
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def _median(same: Sequence[Measurement]) -> Measurement:
    return Measurement(
        side=same[0].side,
        lengths=same[0].lengths,
        precision=same[0].precision,
        update_seconds=median(m.update_seconds for m in same),
        phase_seconds={name: median(m.phase_seconds[name] for m in same) for name in same[0].phase_seconds},
    )


def _row(measurement: Measurement) -> tuple[str, ...]:
    phases = (measurement.phase_seconds.get(phase) for phase in PHASES)
    return (
        measurement.side,
        measurement.lengths,
        measurement.precision,
        f"{measurement.samples_per_second:.1f}",
        f"{measurement.update_seconds:.2f} s",
        *("-" if seconds is None else f"{seconds:.2f} s" for seconds in phases),
    )
