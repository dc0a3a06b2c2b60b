"""Our side: the trainer on a recipe built here, and the spans that it wrote. A process of its own for every run:
`python -m benchmarks.end_to_end.our_side '{"model": …}'`. The last line is `RESULT {json}`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.workload import (
    COMPLETION_TOKENS,
    LEARNING_RATE,
    PROMPTS_PER_UPDATE,
    SAMPLES_PER_PROMPT,
    Precision,
)
from rlhf.metrics import Span, busy_seconds
from rlhf.recipe import recipe_from

LEARNER_PHASES = ("publish", "train", "wait")
"""What the learner does, one after the other; what is left of an update is the controller's."""


def recipe(
    *, model: str, prompts: str, precision: Precision, staleness: int, updates: int, folder: str
) -> dict[str, Any]:
    """Two engines and two learner ranks of one thread each. They share the two cores: at staleness 0 they take turns,
    above it whoever has work runs."""
    return {
        "name": "end_to_end",
        "model": {"path": model, "dtype": precision},
        "data": {"train": {"path": prompts, "answer_column": None}},
        "sampling": {"temperature": 1.0, "max_tokens": COMPLETION_TOKENS},
        "rollout": {"engines": 2, "cpus_per_engine": 0.5, "max_sequences": 256},
        "reward": {"kind": "function", "function": "benchmarks.end_to_end.workload:reward"},
        "trainer": {
            "updates": updates,
            "groups_per_update": PROMPTS_PER_UPDATE,
            "group_size": SAMPLES_PER_PROMPT,
            "max_staleness": staleness,
            "optimizer": {"learning_rate": LEARNING_RATE},
            "deepspeed": {"ranks": 2, "cpus_per_rank": 0.5},
        },
        "run": {"dir": folder, "loggers": [], "live": False},
    }


def measure(*, staleness: int, warmup: int, updates: int, **given: Any) -> dict[str, Any]:
    """Train, and look at the measured updates. At the end of a run nothing new is played ahead, so as many updates as
    are played ahead are run after the measured ones."""
    from rlhf.api import Trainer

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        total = warmup + updates + staleness
        summary = Trainer(recipe_from(recipe(**given, staleness=staleness, updates=total, folder=str(folder)))).fit()
        assert summary.samples == total * PROMPTS_PER_UPDATE * SAMPLES_PER_PROMPT, "not every sample was trained"
        spans = read_spans(folder / "spans.jsonl")
    return steady_state(spans, warmup=warmup, updates=updates)


def read_spans(path: Path) -> list[Span]:
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return [Span(name=row["name"], start=row["start"], seconds=row["seconds"]) for row in rows]


def steady_state(spans: Sequence[Span], *, warmup: int, updates: int) -> dict[str, Any]:
    """Seconds an update, and by phase, between the publishes that end update `warmup` and `warmup + updates`.

    The first publish comes before the first update.
    """
    publishes = sorted(span.start + span.seconds for span in spans if span.name == "publish")
    began, ended = publishes[warmup], publishes[warmup + updates]
    busy = busy_seconds(clipped(span, began, ended) for span in spans if span.start < ended and _end(span) > began)
    phases = {name: busy.get(name, 0.0) / updates for name in ("generate", *LEARNER_PHASES)}
    update_seconds = (ended - began) / updates
    controller = update_seconds - sum(phases[name] for name in LEARNER_PHASES)
    return {"update_seconds": update_seconds, "phase_seconds": phases | {"controller": controller}}


def clipped(span: Span, began: float, ended: float) -> Span:
    """The part of a span inside the window."""
    start = max(span.start, began)
    return Span(name=span.name, start=start, seconds=min(_end(span), ended) - start)


def _end(span: Span) -> float:
    return span.start + span.seconds


if __name__ == "__main__":
    print("RESULT", json.dumps(measure(**json.loads(sys.argv[1]))))
