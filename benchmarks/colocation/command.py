"""`python -m benchmarks colocation`: the memory of a colocated run by phase, against the run with separate workers.

Both runs are the quickstart with two ranks and two engines of a larger model, on a CPU: the ranks park their state in
files, and a sleeping engine drops its weights and its KV cache. The colocated run is held against its plan.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.colocation.account import Account, account, by_state, told
from benchmarks.colocation.memory import Sample, Span, by_phase, watched
from rlhf.apps.cli.plan import planned
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.machines import here

MIB = 2**20
ALLOWED = 0.15
"""How far a plan may be from what is measured, as in `python -m benchmarks memory`."""
RECIPE = "recipes/quickstart.yaml"
PROMPT_TOKENS = 16
"""About, of its prompts."""
MODEL = "{architecture: qwen2, hidden_size: 512, intermediate_size: 2048, layers: 8, heads: 8, kv_heads: 4}"
SETTINGS = (
    f"model.tiny={MODEL}", "model.warmup=null", "trainer.deepspeed.ranks=2", "rollout.engines=2",
    "trainer.groups_per_update=16", "trainer.updates=3", "trainer.tokens_per_microbatch=512",
    "trainer.eval_every=0", "data.eval.arguments.rows=64",
    "reward.kind=function", "reward.function=tests.end_to_end.rewards:varied",
)  # fmt: skip
PLACEMENTS = ("separate", "colocated")
ROLES = ("learner", "engine")
COMPARED = ("reward/mean", "optimizer/grad_norm", "optimizer/loss")


def main(arguments: Sequence[str]) -> None:
    given = parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = {placement: run(Path(folder), placement, given.setting) for placement in PLACEMENTS}
    peaks = {placement: by_phase(one.samples, one.spans) for placement, one in runs.items()}
    both = sum(max(sample.of(role) for sample in peaks["separate"].values()) for role in ROLES)
    colocated = max(sample.total for sample in peaks["colocated"].values())
    for placement, samples in peaks.items():
        table(placement, samples)
    accounts = planned_account(runs["colocated"], given.setting)
    for one in accounts:
        print("", *told(one, MIB), sep="\n")
    difference = largest_difference(runs["separate"].metrics, runs["colocated"].metrics)
    print(f"the peaks of ranks and of engines, separate, together: {both / MIB:,.0f} MiB")
    print(f"the peak of all, colocated: {colocated / MIB:,.0f} MiB, {1 - colocated / both:.1%} less")
    print(f"the largest difference of {', '.join(COMPARED)} over all updates: {difference:.2g}")
    ratios = {one.state: round(one.planned / one.measured, 2) for one in accounts}
    figures = {"separate_mib": round(both / MIB), "colocated_mib": round(colocated / MIB), "difference": difference,
               "planned_over_measured": ratios}  # fmt: skip
    print("RESULT", json.dumps(figures), flush=True)
    if colocated >= both or difference > 1e-4:
        sys.exit("missed: the colocated run takes no less memory, or trains something else")
    if any(abs(ratio - 1) > ALLOWED for ratio in ratios.values()):
        sys.exit(f"missed: the plan is more than {ALLOWED:.0%} from what was measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of a run."""

    samples: list[Sample]
    spans: list[Span]
    metrics: list[Mapping[str, float]]


def run(folder: Path, placement: str, settings: Sequence[str]) -> Seen:
    """A run of this placement, to its end."""
    place = folder / placement
    words = (f"run.dir={place}", f"model.cache_dir={folder / 'models'}", f"cluster.placement={placement}")
    command = [sys.executable, "-m", "rlhf", "train", RECIPE, *SETTINGS, *settings, *words]
    samples = watched(command)
    spans, metrics = (
        [json.loads(line) for line in (place / name).read_text().splitlines()]
        for name in ("spans.jsonl", "metrics.jsonl")
    )
    return Seen(samples=samples, spans=spans, metrics=metrics)


def planned_account(seen: Seen, settings: Sequence[str]) -> list[Account]:
    """The account of the colocated run, by the plan that `rlhf plan` makes of its recipe on this machine."""
    recipe = load_recipe(Path(RECIPE), [*SETTINGS, *settings, "cluster.placement=colocated"]).recipe
    found, _ = planned(recipe, here(), prompt_tokens=PROMPT_TOKENS)
    ranks, engines = found.run.learner.ranks, found.run.engines[0].engines
    return account(found.learner, found.engines[0], ranks, engines, by_state(seen.samples, seen.spans))


def table(placement: str, samples: Mapping[str, Sample]) -> None:
    """Print the largest sums by phase."""
    print(f"\n{placement:<12}{'ranks':>8}{'engines':>9}{'all':>8}   MiB")
    for phase, sample in samples.items():
        ranks, engines = (sample.of(role) / MIB for role in ROLES)
        print(f"{phase:<12}{ranks:>8,.0f}{engines:>9,.0f}{sample.total / MIB:>8,.0f}")


def largest_difference(one: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]]) -> float:
    """Between the metrics of two runs."""
    return max(abs(a[name] - b[name]) for a, b in zip(one, other, strict=True) for name in COMPARED)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks colocation", description=__doc__)
    parser.add_argument("setting", nargs="*", help="KEY=VALUE of the recipe, for both runs")
    return parser.parse_args(arguments)
