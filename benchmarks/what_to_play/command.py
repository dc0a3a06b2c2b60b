"""`python -m benchmarks what_to_play`: how many tokens runs sample until their held-out reward is reached.

Each setting of `data.train.order` and `trainer.replay` trains from the same start weights, with as many seeds, on the
quickstart's task and on one of which 70 % of the prompts are too easy or too hard. Runs that `--folder` holds already
are not repeated, so the benchmark can be stopped, and done in pieces (`--tasks`, `--settings`, `--seeds`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.what_to_play.runs import Reached, kept, started
from rlhf.config import merge, read_yaml
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.schema import Recipe

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
NUMBERS = "benchmarks.what_to_play.numbers"
HELD_OUT, TARGET = 128, 0.9
"""Held-out problems, and the reward of greedy replies to them that ends a run."""
LESS = 0.8
"""Largest ratio of tokens to those of uniform order on the task in which most prompts teach nothing."""

TASKS: Mapping[str, dict[str, Any]] = {
    "quickstart": {"trainer": {"updates": 60, "groups_per_update": 16, "eval_every": 1}},
    "mostly_dull": {
        "model": {"warmup": {"demonstrations": f"{NUMBERS}:demonstrations"}},
        "data": {
            "train": {"tasks": f"{NUMBERS}:tasks", "arguments": {"rows": 60}},
            "eval": {
                "tasks": f"{NUMBERS}:tasks", "arguments": {"rows": HELD_OUT, "teaching_share": 1.0, "split": "eval"},
            },
        },
        "trainer": {
            "updates": 160, "groups_per_update": 4, "eval_every": 2, "optimizer": {"learning_rate": 1e-4},
        },
    },
}  # fmt: skip
"""By task, what is changed of the quickstart."""
LEARNABILITY = {"data": {"train": {"order": "learnability"}}}
SETTINGS = ("uniform", "learnability", "replay", "both")


def main(arguments: Sequence[str]) -> None:
    chosen = parse(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, dict[str, dict[int, Reached]]] = {}
    for task in chosen.tasks:
        asyncio.run(train_missing(task, chosen))
        runs = kept(chosen.folder / f"{task}.jsonl")
        found[task] = {name: {seed: runs[f"{name}-{seed}"] for seed in chosen.seeds} for name in chosen.settings}
    result = {task: dict(figures(by_setting)) for task, by_setting in found.items()}
    for task, rows in result.items():
        for name, row in rows.items():
            print(f"{task:12} {name:14} {json.dumps(row)}")
    print("RESULT", json.dumps(result), flush=True)
    best = min((row["ratio"] or 1.0 for row in result.get("mostly_dull", {}).values()), default=0.0)
    if best > LESS:
        sys.exit(f"missed: no setting samples {LESS} of the tokens of uniform order where most prompts are dull")


async def train_missing(task: str, chosen: argparse.Namespace) -> None:
    """Train every run of a task that is not in its file, and add it."""
    file = chosen.folder / f"{task}.jsonl"
    names = {f"{name}-{seed}": (name, seed) for seed in chosen.seeds for name in chosen.settings}
    missing = {run: one for run, one in names.items() if run not in kept(file)}
    if not missing:
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as scratch:
        async with started(recipe(task, "uniform", 0, chosen.folder), Path(scratch)) as bench:
            for run, (name, seed) in missing.items():
                reached = await bench.run(recipe(task, name, seed, chosen.folder), TARGET)
                with file.open("a") as lines:
                    lines.write(json.dumps({"run": run} | asdict(reached)) + "\n")
                print(f"{task} {run} {reached}", file=sys.stderr, flush=True)


def figures(by_setting: Mapping[str, Mapping[int, Reached]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the settings with their tokens: the median and the spread over seeds, and the ratio to uniform order
    of the medians and of every seed. A run that never came there counts with all that it sampled."""
    usual = by_setting.get("uniform")
    for name, runs in by_setting.items():
        tokens = [one.tokens for one in runs.values()]
        yield (
            name,
            {
                "tokens": int(median(tokens)),
                "least": min(tokens),
                "most": max(tokens),
                "never": sum(not one.reached for one in runs.values()),
                "equal_groups": round(median(one.equal_groups for one in runs.values()), 3),
                "ratio": round(median(tokens) / median(one.tokens for one in usual.values()), 3) if usual else None,
                "ratios": [round(one.tokens / usual[seed].tokens, 3) for seed, one in runs.items()] if usual else [],
            },
        )


def recipe(task: str, name: str, seed: int, folder: Path) -> Recipe:
    """Return the quickstart as one process on one core, with what task and setting change. All settings weigh tokens
    alike: for those that are fresh the weight is 1."""
    whole, groups = read_yaml(QUICKSTART), TASKS[task]["trainer"]["groups_per_update"]
    one_core: dict[str, Any] = {
        "model": {"cache_dir": str(folder / "models")},
        "rollout": {"engines": 1, "cpus_per_engine": 0.5},
        "trainer": {
            "deepspeed": {"ranks": 1, "cpus_per_rank": 0.5}, "optimizer": {"schedule": "constant"},
            "proximal_logprobs": "recomputed", "weight_sync": {"verify_at_start": False},
        },
        "cluster": {"kind": "local"},
        "seed": seed,
    }  # fmt: skip
    changed: list[Mapping[str, Any]] = [LEARNABILITY] if name in ("learnability", "both") else []
    changed += [{"trainer": {"replay": {"groups": groups}}}] if name in ("replay", "both") else []
    own = {"data": TASKS[task].get("data", whole["data"])}
    layers = (whole | {"data": {}}, own, TASKS[task], one_core, *changed)
    values, _ = merge(*(("", layer) for layer in layers))
    return recipe_from(values).recipe


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks what_to_play", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--folder", type=Path, default=Path("runs/what_to_play"), help="where the runs are kept")
    return parser.parse_args(arguments)
