"""`python -m benchmarks roles`: is a policy for each role of Kuhn poker better than one for all, at equal tokens?

Both train with the same recipe, start model, groups, updates and rank; only the adapter is shared or not. Probabilities
are computed and not sampled, so each figure of a run is exact. Runs that `--folder` holds already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from recipes.tasks.kuhn_poker import INFORMATION_SETS, Strategy, expected_value, exploitability, seated

RECIPE = "recipes/kuhn_two_policies.yaml"
ONE_FOR_ALL = ("policies={}", "roles={}", "model.lora.rank=16")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks roles", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark.roles"), help="what was run is kept here")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args(arguments)
    rows = [measured(options.folder / f"seed-{seed}", seed) for seed in options.seeds]
    for row in rows:
        print(json.dumps(row))
    print("RESULT", json.dumps({name: round(median(row[name] for row in rows), 3) for name in rows[0]}))


def measured(folder: Path, seed: int) -> dict[str, float]:
    """Train both ways from one start model. Return the exploitability of the start, of both, and of the two policies
    in each other's seat; what the two win of the one, over both seats; all in chips a hand. And the sampled tokens."""
    two, one = trained(folder, "two_policies", seed), trained(folder, "one_for_all", seed, *ONE_FOR_ALL)
    start = strategy(folder / "start")
    first, second = (strategy(folder / "start", two / "policies" / name / "adapter") for name in ("one", "two"))
    apart, shared = seated(first, second), strategy(folder / "start", one / "adapter")
    figures: dict[str, float] = {
        "start": exploitability(start),
        "two_policies": exploitability(apart),
        "one_for_all": exploitability(shared),
        "swapped": exploitability(seated(second, first)),
        "two_win_of_one": (expected_value(seated(apart, shared)) - expected_value(seated(shared, apart))) / 2,
    }
    for run in (two, one):
        metrics = (run.parents[1] / "metrics.jsonl").read_text().splitlines()
        figures[f"{run.parents[1].name}_tokens"] = sum(json.loads(line)["tokens/trained"] for line in metrics)
    return {name: round(figure, 4) for name, figure in figures.items()}


def trained(folder: Path, name: str, seed: int, *overrides: str) -> Path:
    """Return the last checkpoint of a run, which is made if it is missing."""
    if not (folder / name / "summary.json").exists():
        own = (f"run.dir={folder / name}", f"model.cache_dir={folder / 'start'}", f"seed={seed}", *overrides)
        subprocess.run([sys.executable, "-m", "rlhf", "train", RECIPE, *own], check=True, stdout=subprocess.DEVNULL)
    return max((folder / name / "checkpoints").glob("version-*"))


def strategy(cache: Path, adapter: Path | None = None) -> Strategy:
    """Return the probability with which the only start model in a cache, with an adapter, replies `b` and no more."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (base,) = cache.iterdir()
    tokenizer, start = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base)
    model = PeftModel.from_pretrained(start, str(adapter)) if adapter else start
    reply, bets = [tokenizer.convert_tokens_to_ids("b"), tokenizer.eos_token_id], {}
    for shown in INFORMATION_SETS:
        turn = [{"role": "user", "content": shown}]
        prompt = tokenizer(str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)))
        with torch.no_grad():
            logits = model(torch.tensor([prompt["input_ids"] + reply])).logits[0, -3:-1]
        bets[shown] = float(logits.log_softmax(-1)[range(2), reply].sum().exp())
    return bets
