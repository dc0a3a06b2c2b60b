"""`python -m benchmarks colocation`: the memory of a colocated run by phase, against the run with separate workers.

Both runs are the quickstart with two ranks and two engines of a larger model, on a CPU: the ranks park their state in
files, and a sleeping engine drops its weights and its KV cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.colocation.memory import Sample, by_phase, watched

MIB = 2**20
MODEL = "{architecture: qwen2, hidden_size: 512, intermediate_size: 2048, layers: 8, heads: 8, kv_heads: 4}"
SETTINGS = (
    f"model.tiny={MODEL}", "model.warmup=null", "trainer.deepspeed.ranks=2", "rollout.engines=2",
    "trainer.groups_per_update=16", "trainer.updates=3", "trainer.eval_every=0", "data.eval.arguments.rows=64",
    "reward.kind=function", "reward.function=tests.end_to_end.rewards:varied",
)  # fmt: skip
PLACEMENTS = ("separate", "colocated")
ROLES = ("learner", "engine")
COMPARED = ("reward/mean", "grad_norm", "loss")


def main(arguments: Sequence[str]) -> None:
    given = parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = {placement: run(Path(folder), placement, given.setting) for placement in PLACEMENTS}
    peaks = {placement: peak for placement, (peak, _) in runs.items()}
    both = sum(max(sample.bytes.get(role, 0) for sample in peaks["separate"].values()) for role in ROLES)
    colocated = max(sample.total for sample in peaks["colocated"].values())
    for placement, samples in peaks.items():
        table(placement, samples)
    difference = largest_difference(runs["separate"][1], runs["colocated"][1])
    print(f"the peaks of ranks and of engines, separate, together: {both / MIB:,.0f} MiB")
    print(f"the peak of all, colocated: {colocated / MIB:,.0f} MiB, {1 - colocated / both:.1%} less")
    print(f"the largest difference of {', '.join(COMPARED)} over all updates: {difference:.2g}")
    figures = {"separate_mib": round(both / MIB), "colocated_mib": round(colocated / MIB), "difference": difference}
    print("RESULT", json.dumps(figures), flush=True)
    if colocated >= both or difference > 1e-4:
        sys.exit("missed: the colocated run takes no less memory, or trains something else")


def run(folder: Path, placement: str, settings: Sequence[str]) -> tuple[dict[str, Sample], list[Mapping[str, float]]]:
    """The largest sample of every phase, and the metrics of every update."""
    place = folder / placement
    words = (f"run.dir={place}", f"model.cache_dir={folder / 'models'}", f"cluster.placement={placement}")
    command = [sys.executable, "-m", "rlhf", "train", "recipes/quickstart.yaml", *SETTINGS, *settings, *words]
    samples = watched(command)
    metrics = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return by_phase(samples, place / "spans.jsonl"), metrics


def table(placement: str, samples: Mapping[str, Sample]) -> None:
    """Print the largest sums by phase."""
    print(f"\n{placement:<12}{'ranks':>8}{'engines':>9}{'all':>8}   MiB")
    for phase, sample in samples.items():
        ranks, engines = (sample.bytes.get(role, 0) / MIB for role in ROLES)
        print(f"{phase:<12}{ranks:>8,.0f}{engines:>9,.0f}{sample.total / MIB:>8,.0f}")


def largest_difference(one: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]]) -> float:
    """Between the metrics of two runs."""
    return max(abs(a[name] - b[name]) for a, b in zip(one, other, strict=True) for name in COMPARED)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks colocation", description=__doc__)
    parser.add_argument("setting", nargs="*", help="KEY=VALUE of the recipe, for both runs")
    return parser.parse_args(arguments)
