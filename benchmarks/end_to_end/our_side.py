"""Our side: the trainer on a recipe built here, and the spans that it wrote. A process of its own for every run:
`python -m benchmarks.end_to_end.our_side '{"model": …}'`. The last line is `RESULT {json}`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.workload import (
    LEARNING_RATE,
    PROMPTS_PER_UPDATE,
    SAMPLES_PER_PROMPT,
    SAMPLES_PER_UPDATE,
    Lengths,
    Precision,
    reply_tokens,
)
from rlhf.chat.renderer import ChatRenderer
from rlhf.engines.router import Router
from rlhf.recipe.loading import recipe_from
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.tracing import Span, busy_seconds
from rlhf.types import Completion, Prompt, Sampling

LEARNER_PHASES = ("weight_sync", "train", "wait")
"""What the learner does, one after the other; what is left of an update is the controller's."""


def recipe(
    *, model: str, prompts: str, precision: Precision, longest: int, staleness: int, updates: int, folder: str
) -> dict[str, Any]:
    """Two engines and two learner ranks of one thread each. They share the two cores: at staleness 0 they take turns,
    above it whoever has work runs."""
    return {
        "name": "end_to_end",
        "model": {"path": model, "dtype": precision},
        "data": {"train": {"path": prompts, "answer_column": None}},
        "sampling": {"temperature": 1.0, "max_tokens": longest},
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


def measure(*, lengths: Lengths, staleness: int, warmup: int, updates: int, **given: Any) -> dict[str, Any]:
    """Train, and look at the measured updates. At the end of a run nothing new is played ahead, so as many updates as
    are played ahead are run after the measured ones."""
    from rlhf.api import Trainer

    drawn = reply_tokens(lengths)
    end_replies_as_drawn(drawn)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        total = warmup + updates + staleness
        plan = recipe(**given, longest=max(drawn), staleness=staleness, updates=total, folder=str(folder))
        Trainer(recipe_from(plan)).fit()
        check_trained(read_episodes(folder / "episodes"), drawn, samples=total * SAMPLES_PER_UPDATE)
        spans = read_spans(folder / "spans.jsonl")
    return steady_state(spans, warmup=warmup, updates=updates)


def place(ordinal: int, sample: int) -> int:
    """Which reply of an update it is."""
    return ordinal % PROMPTS_PER_UPDATE * SAMPLES_PER_PROMPT + sample


def end_replies_as_drawn(drawn: Sequence[int]) -> None:
    """Give each request of this process the budget drawn for its reply, and nothing else that ends it. A session is
    named `purpose-ordinal-sample`."""
    ChatRenderer.stop_token_ids = property(lambda renderer: ())  # type: ignore[method-assign,assignment]
    generate = Router.generate

    async def as_drawn(router: Router, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        _, ordinal, sample = session.split("-")
        sampling = replace(sampling, max_tokens=drawn[place(int(ordinal), int(sample))])
        return await generate(router, prompt, sampling=sampling, seed=seed, session=session)

    Router.generate = as_drawn  # type: ignore[assignment,method-assign]


def check_trained(episodes: Iterable[EpisodeRecord], drawn: Sequence[int], *, samples: int) -> None:
    """Every sample was trained, and was as long as drawn."""
    trained = [episode for episode in episodes if episode.outcome is EpisodeOutcome.TRAINED]
    assert len(trained) == samples, "not every sample was trained"
    for episode in trained:
        sampled = 0 if episode.versions is None else int((episode.versions >= 0).sum())
        assert sampled == drawn[place(episode.ordinal, episode.sample)], "a reply has not the length drawn for it"


def read_spans(path: Path) -> list[Span]:
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return [Span(name=row["name"], start=row["start"], seconds=row["seconds"]) for row in rows]


def steady_state(spans: Sequence[Span], *, warmup: int, updates: int) -> dict[str, Any]:
    """Seconds an update, and by phase, between the publishes that end update `warmup` and `warmup + updates`.

    The first publish comes before the first update.
    """
    publishes = sorted(span.start + span.seconds for span in spans if span.name == "weight_sync")
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
