"""`python -m benchmarks records`: write one update's episodes while an event loop ticks."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.runs.episode_parts import EpisodeParts
from rlhf.runs.episode_records import ended_in_update, records_of
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.records import as_row
from rlhf.types import (
    EpisodeStatus,
    Group,
    Message,
    Sample,
    Scored,
    Segment,
    Task,
    Ticket,
    TokenKind,
    TrainedSample,
    Trajectory,
    Updated,
)

GROUP, PROMPT, REPLY = 8, 60, 140
TICK_SECONDS = 0.002
WORDS = np.array(["so", "we", "add", "the", "two", "numbers", "and", "get", "a", "sum", "half", "of", "odd"])


def main(arguments: Sequence[str]) -> None:
    """Print microseconds a token in the loop, the longest time without a tick, and bytes a token."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks records", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens of the update's episodes")
    options = parser.parse_args(arguments)
    groups, updated = made_update(options.tokens // (GROUP * (PROMPT + REPLY)))
    tokens = len(groups) * GROUP * (PROMPT + REPLY)
    with tempfile.TemporaryDirectory() as scratch:
        in_loop, longest, seconds = asyncio.run(written(Path(scratch) / "parts", groups, updated))
        in_parts = sum(part.stat().st_size for part in (Path(scratch) / "parts").iterdir())
        began = time.perf_counter()
        lines = JsonlWriter(Path(scratch) / "lines.jsonl")
        lines.write(as_row(record) for group in ended_in_update(groups, updated, 1) for record in records_of(group))
        lines.close()
        json_seconds = time.perf_counter() - began
        in_lines = (Path(scratch) / "lines.jsonl").stat().st_size
    result = {
        "tokens": tokens,
        "us_per_token_in_loop": round(1e6 * in_loop / tokens, 4),
        "longest_without_tick_ms": round(1e3 * longest, 1),
        "seconds": round(seconds, 3),
        "bytes_per_token": round(in_parts / tokens, 2),
        "json_us_per_token": round(1e6 * json_seconds / tokens, 4),
        "json_bytes_per_token": round(in_lines / tokens, 2),
        "size_ratio": round(in_parts / in_lines, 3),
    }
    print("RESULT", json.dumps(result), flush=True)


async def written(folder: Path, groups: Sequence[Group], updated: Updated) -> tuple[float, float, float]:
    """Write the update; return the seconds in the loop, the longest between ticks, and those until it is on disk."""
    parts, ticks = EpisodeParts(folder), [time.perf_counter()]
    ticking = asyncio.ensure_future(tick(ticks))
    await asyncio.sleep(10 * TICK_SECONDS)
    began = time.perf_counter()
    parts.add(*ended_in_update(groups, updated, 1))
    parts.cut()
    in_loop = time.perf_counter() - began
    await parts.written()
    seconds = time.perf_counter() - began
    await asyncio.sleep(10 * TICK_SECONDS)
    ticking.cancel()
    parts.close()
    return in_loop, float(np.diff(ticks).max()), seconds


async def tick(ticks: list[float]) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        ticks.append(time.perf_counter())


def made_update(groups: int) -> tuple[list[Group], Updated]:
    """Return made groups of one-turn episodes with the columns of real ones."""
    rng = np.random.default_rng(0)
    made = [made_group(rng, ordinal) for ordinal in range(groups)]
    samples = [made_trained(rng, ordinal, sample) for ordinal in range(groups) for sample in range(GROUP)]
    return made, Updated(metrics={}, samples=tuple(samples))


def made_group(rng: np.random.Generator, ordinal: int) -> Group:
    question = Message(role="user", content=words(rng, PROMPT))
    task = Task(id=f"made/{ordinal}", messages=(question,), answer=str(ordinal))
    samples = tuple(
        Sample(
            trajectory=Trajectory(
                task=task,
                segments=(made_segment(rng),),
                status=EpisodeStatus.TERMINATED,
                response=words(rng, REPLY),
                engine="engine-0",
            ),
            score=Scored(value=float(rng.integers(0, 2)), parts={"exact": 1.0, "format": 0.5}),
        )
        for _ in range(GROUP)
    )
    return Group(ticket=Ticket(ordinal=ordinal, version=0), task=task, samples=samples)


def made_segment(rng: np.random.Generator) -> Segment:
    kinds = np.array([TokenKind.PROMPT] * PROMPT + [TokenKind.ACTION] * REPLY, np.int8)
    acted = kinds == TokenKind.ACTION
    return Segment(
        token_ids=np.minimum(rng.zipf(1.3, len(kinds)), 150_000).astype(np.int32),
        kinds=kinds,
        behaviour_logprobs=np.where(acted, made_logprobs(rng, len(kinds)), 0).astype(np.float32),
        versions=np.where(acted, 0, -1).astype(np.int32),
    )


def made_trained(rng: np.random.Generator, ordinal: int, sample: int) -> TrainedSample:
    advantages = np.full(REPLY, rng.normal(), np.float32)
    logprobs = made_logprobs(rng, REPLY)
    entropies = rng.gamma(0.5, 1, REPLY).astype(np.float32)
    return TrainedSample(
        ordinal=ordinal, sample=sample, advantages=advantages, proximal_logprobs=logprobs, entropies=entropies
    )


def made_logprobs(rng: np.random.Generator, count: int) -> Any:
    return -rng.gamma(0.5, 1, count).astype(np.float32)


def words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(WORDS, count))
