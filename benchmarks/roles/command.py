"""`python -m benchmarks roles`: is a policy for each role of Kuhn poker better than one for all, at equal tokens?

Both train with the same recipe, groups, updates, rank and start model; only the adapter is shared or not. The
probabilities of the trained policies are computed, not sampled, so each figure of a run is exact. Runs that `--folder`
holds already are not repeated.
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

RECIPE = Path(__file__).parents[2] / "recipes" / "kuhn_two_policies.yaml"
ONE_FOR_ALL = ("policies={}", "roles={}", "model.lora.rank=16")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks roles", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark.roles"), help="what was run is kept here")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    options = parser.parse_args(arguments)
    rows = [measured(options.folder / f"seed-{seed}", (f"seed={seed}", *options.override)) for seed in options.seeds]
    for row in rows:
        print(json.dumps(row))
    print("RESULT", json.dumps({name: round(median(row[name] for row in rows), 3) for name in rows[0]}))


def measured(folder: Path, overrides: Sequence[str]) -> dict[str, float]:
    """Train both ways from one start model. Return the exploitability of the start, of both, and of the two policies
    in each other's seat, in chips; what the two win of the one in both seats, in chips a hand; and sampled tokens."""
    two, one = folder / "two_policies", folder / "one_for_all"
    for run, own in ((two, ()), (one, ONE_FOR_ALL)):
        if not (run / "summary.json").exists():
            words = [str(RECIPE), f"run.dir={run}", f"model.cache_dir={folder / 'start'}", *overrides, *own]
            subprocess.run([sys.executable, "-m", "rlhf", "train", *words], check=True, stdout=subprocess.DEVNULL)
    first, second = (strategy(folder / "start", run_adapter(two, name)) for name in ("one", "two"))
    apart, shared = seated(first, second), strategy(folder / "start", run_adapter(one))
    figures = {
        "start": exploitability(strategy(folder / "start")),
        "two_policies": exploitability(apart),
        "one_for_all": exploitability(shared),
        "swapped": exploitability(seated(second, first)),
        "two_win_of_one": (expected_value(seated(apart, shared)) - expected_value(seated(shared, apart))) / 2,
    }
    return {name: round(figure, 4) for name, figure in figures.items()} | {
        "tokens_two_policies": tokens(two),
        "tokens_one_for_all": tokens(one),
    }


def run_adapter(run: Path, policy: str = "") -> Path:
    """Return the folder of the adapter in a run's last checkpoint."""
    checkpoint = max((run / "checkpoints").glob("version-*"))
    return checkpoint / "policies" / policy / "adapter" if policy else checkpoint / "adapter"


def tokens(run: Path) -> int:
    """Return the number of sampled tokens that a run was trained on."""
    return int(sum(json.loads(line)["tokens/trained"] for line in (run / "metrics.jsonl").read_text().splitlines()))


def strategy(cache: Path, adapter: Path | None = None) -> Strategy:
    """Return the probability with which the only start model in a cache, with an adapter, replies `b` and no more."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (base,) = cache.iterdir()
    tokenizer, start = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base)
    model = PeftModel.from_pretrained(start, str(adapter)) if adapter else start
    reply = [tokenizer.convert_tokens_to_ids("b"), tokenizer.eos_token_id]
    bets = {}
    for shown in INFORMATION_SETS:
        turn = [{"role": "user", "content": shown}]
        prompt = tokenizer(str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)))
        with torch.no_grad():
            logits = model(torch.tensor([prompt["input_ids"] + reply])).logits[0, -3:-1]
        bets[shown] = float(logits.log_softmax(-1)[range(2), reply].sum().exp())
    return bets
