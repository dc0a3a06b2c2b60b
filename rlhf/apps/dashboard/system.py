"""A run's workers, where and how fast they worked, and what failed, as recorded in its folder."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.apps.dashboard.episode_index import EpisodeIndex
from rlhf.runs.episode_query import Question
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.provenance import recorded_provenance

HEAD_BYTES = 65_536
"""How much of the run's messages is searched for the table of workers, which is among the first."""
WORKED = (
    "count(*) AS episodes", "sum(sampled_tokens)::BIGINT AS tokens", "sum(generate_seconds) AS seconds",
    "median(generate_seconds) AS median_seconds", "quantile_cont(generate_seconds, 0.95) AS p95_seconds",
    "max(generate_seconds) AS longest_seconds",
)  # fmt: skip
PLAYED = (
    "count(*) AS episodes", "median(environment_seconds) AS median_seconds",
    "quantile_cont(environment_seconds, 0.95) AS p95_seconds", "max(environment_seconds) AS longest_seconds",
    "sum(malformed_calls)::BIGINT AS malformed_calls", "sum(cut_replies)::BIGINT AS cut_replies",
)  # fmt: skip
FAILED = ("count(*) AS episodes", "max(update) AS last_update", "max(admitted_version) AS last_version")


def system(folder: RunFolder, index: EpisodeIndex) -> dict[str, Any]:
    """Return placement, work of engines and environments, failures, disk use and provenance."""
    with_environment = "environment_seconds IS NOT NULL AND role IS NOT NULL"
    return {
        "placement": placement(folder.logs / "controller.log"),
        "engines": index.summed("episodes", WORKED, ["engine"], Question(where="engine IS NOT NULL", order="engine")),
        "loads": engine_loads(folder.spans),
        "environments": index.summed("episodes", PLAYED, ["role"], Question(where=with_environment, order="role")),
        "failures": index.summed(
            "episodes", FAILED, ["outcome", "failure_kind"],
            Question(where="failure_kind IS NOT NULL", order="episodes DESC"),
        ),
        "disk": {path.name: size for path in sorted(folder.path.iterdir()) if (size := bytes_in(path))},
        "provenance": recorded_provenance(folder),
    }  # fmt: skip


def engine_loads(spans: Path) -> list[dict[str, Any]]:
    """Return how busy each engine was, in the mean step of the run: `running` and `waiting` requests, the largest share
    of its KV cache in use, and the share of prompt tokens that it had cached."""
    loads: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for span in read_jsonl(spans) if spans.exists() else ():
        if span["name"] == "engine":
            loads[span["engine"]].append(span)
    return [{"engine": engine, **_mean_load(loads[engine])} for engine in sorted(loads)]


def _mean_load(spans: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    steps, prompt_tokens = (sum(span[name] for span in spans) for name in ("steps", "prompt_tokens"))
    return {
        "steps": steps,
        "running": sum(span["steps"] * span["running"] for span in spans) / steps,
        "waiting": sum(span["steps"] * span["waiting"] for span in spans) / steps,
        "kv_cache": max(span["kv_cache"] for span in spans),
        "prefix_hits": sum(span["cached_tokens"] for span in spans) / prompt_tokens if prompt_tokens else None,
    }


def placement(log: Path) -> list[list[str]]:
    """Return the table of workers that the run printed at its start, with its heads; nothing without one."""
    try:
        with log.open(errors="replace") as file:
            lines = file.read(HEAD_BYTES).splitlines()
    except OSError:
        return []
    start = next((number for number, line in enumerate(lines) if re.match(r"worker\s+node\s+cores", line)), len(lines))
    rows = [line.split() for line in lines[start:]]
    width = len(rows[0]) if rows else 0
    return rows[: next((number for number, row in enumerate(rows) if len(row) != width), len(rows))]


def bytes_in(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum((Path(folder) / name).lstat().st_size for folder, _, files in os.walk(path) for name in files)
