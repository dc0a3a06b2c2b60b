"""The figures that compare the two sides, and which of them are required. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.end_to_end.measurement import Measurement, best
from benchmarks.end_to_end.sides import PRODUCTS, TRL, TRL_SMALL_BATCHES
from benchmarks.end_to_end.workload import Lengths, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Samples per second of the fastest `side` (ours, or another one) over TRL's side `against`, each at the precisions
    named, on replies of `lengths`."""

    name: str
    lengths: Lengths = "equal"
    ours: tuple[Precision, ...]
    trl: tuple[Precision, ...]
    against: str = TRL
    side: str = "ours"
    required: float | None = None

    def of(self, summary: Sequence[Measurement]) -> float | None:
        """None where a side that it compares was not measured."""
        ours = best(summary, self.side, self.lengths, self.ours)
        trl = best(summary, self.against, self.lengths, self.trl)
        return round(trl.update_seconds / ours.update_seconds, 3) if ours and trl else None


FIGURES = (
    Figure(name="ratio_fp32", ours=("float32",), trl=("float32",), required=2.0),
    Figure(name="ratio_bf16", ours=("bfloat16",), trl=("bfloat16",), required=1.5),
    Figure(name="ratio_fp32_masters", ours=("float32", "bfloat16"), trl=("float32",)),
    Figure(name="ratio_fp32_at_peak", ours=("float32",), trl=("float32",), side=PRODUCTS),
    Figure(name="ratio_bf16_at_peak", ours=("bfloat16",), trl=("bfloat16",), side=PRODUCTS),
    Figure(name="ratio_long_tail", lengths="long_tail", ours=("float32",), trl=("float32",), required=5.0),
    Figure(
        name="ratio_long_tail_small_batches",
        lengths="long_tail",
        ours=("float32",),
        trl=("float32",),
        against=TRL_SMALL_BATCHES,
    ),
    Figure(name="ratio_long_tail_bf16", lengths="long_tail", ours=("bfloat16",), trl=("bfloat16",)),
)


def figures(summary: Sequence[Measurement]) -> dict[str, float]:
    """Those whose sides were measured."""
    return {figure.name: value for figure in FIGURES if (value := figure.of(summary)) is not None}


def missed(found: Mapping[str, float]) -> list[str]:
    """The required figures that were measured and are too low, for instance `ratio_fp32 is 1.35, required 2`."""
    return [
        f"{figure.name} is {found[figure.name]:g}, required {figure.required:g}"
        for figure in FIGURES
        if figure.required is not None and found.get(figure.name, figure.required) < figure.required
    ]


def result(summary: Sequence[Measurement], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the RESULT line holds."""
    sides = [asdict(m) | {"samples_per_second": round(m.samples_per_second, 2)} for m in summary]
    return {"benchmark": "end_to_end", **figures(summary), "sides": sides, **facts}
