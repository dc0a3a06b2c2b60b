"""`python -m benchmarks simulate`: short runs, what is predicted of each, and the time that a thousand engines take.

An update of a run at staleness 1 is predicted from the run at staleness 0, whose durations know nothing of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path

from benchmarks.end_to_end.command import pin
from benchmarks.end_to_end.sides import DEADLINE_SECONDS, ROOT, environment
from benchmarks.end_to_end.workload import PROMPTS_PER_UPDATE, Lengths, write_prompts
from rlhf.errors import UserError
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.simulation.recipe import predicted_from_run
from rlhf.recipe.simulation.run import Durations, EpisodeWork, GroupWork, Trouble, predict

BOUND = 0.15
MANY_ENGINES, MANY_SECONDS = 1000, 10.0
LENGTHS: tuple[Lengths, ...] = ("equal", "long_tail")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulate", description=__doc__)
    parser.add_argument("--updates", type=int, default=8, help="updates of a run")
    parser.add_argument("--only", nargs="*", choices=LENGTHS, default=LENGTHS, help="lengths of the replies")
    parser.add_argument("--folder", type=Path, help="where runs are kept, and taken from if they are there")
    options = parser.parse_args(arguments)
    cores = pin()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        for lengths in options.only:
            figures |= compared(folder.absolute(), lengths, options.updates, len(cores))
    seconds = many_engines()
    print(f"{MANY_ENGINES} engines: {seconds:.1f} s of processor time")
    print("RESULT", json.dumps({"benchmark": "simulate", **figures, "many_engines_seconds": round(seconds, 2)}))
    wide = [name for name, one in figures.items() if abs(one["error"]) > BOUND]
    if wide or seconds > MANY_SECONDS:
        sys.exit(f"missed: {', '.join([*wide, *(['many_engines_seconds'] if seconds > MANY_SECONDS else [])])}")


def compared(folder: Path, lengths: Lengths, updates: int, cores: int) -> dict[str, dict[str, float]]:
    """Predict both runs from the synchronous one, and measure the other by its own records."""
    runs = [recorded(folder, lengths, staleness, updates) for staleness in (0, 1)]
    figures = {}
    for staleness, run in enumerate(runs):
        recipe = load_recipe(run / "recipe.yaml").recipe
        predicted = predicted_from_run(recipe, runs[0], cores, Trouble())[0].update_seconds
        measured = predicted_from_run(recipe, run, inf, Trouble())[2].update_seconds
        error = predicted / measured - 1
        figures[f"{lengths}_staleness_{staleness}"] = {
            "measured": round(measured, 2), "predicted": round(predicted, 2), "error": round(error, 3)
        }  # fmt: skip
        print(f"{lengths}, staleness {staleness}: {measured:.2f} s, {predicted:.2f} predicted", flush=True)
    return figures


def recorded(folder: Path, lengths: Lengths, staleness: int, updates: int) -> Path:
    """Return the folder of a run, made now unless it is there."""
    run, model, prompts = folder / f"{lengths}-{staleness}", folder / "model", folder / "prompts.jsonl"
    if (run / "summary.json").is_file():
        return run
    folder.mkdir(parents=True, exist_ok=True)
    if not prompts.exists():
        save_tiny(TinyModelConfig(), 0, model)
        write_prompts(prompts, rows=64 * PROMPTS_PER_UPDATE)
    given = {"folder": str(run), "model": str(model), "prompts": str(prompts), "lengths": lengths}
    words = json.dumps(given | {"staleness": staleness, "updates": updates})
    ended = subprocess.run(
        (sys.executable, "-m", "benchmarks.simulate.recorded_run", words), cwd=ROOT, env=environment(1),
        capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise UserError(f"the run of {lengths} at staleness {staleness} failed: {ended.stderr[-1000:]}")
    return run


def many_engines() -> float:
    """Return the processor time of a simulated run with 1,024 groups of 8 an update."""
    groups = [GroupWork(episodes=tuple(EpisodeWork(prompt_tokens=512, tokens=64 << (n % 6)) for n in range(8)))]
    durations = Durations(
        step=5e-3, sequence=5e-5, prompt_token=1e-6, train_token=1e-6, weight_sync=2.0, rest=0.5, restart=90.0
    )
    settings = ("trainer.groups_per_update=1024", "trainer.max_staleness=1", f"rollout.engines={MANY_ENGINES}")
    recipe = load_recipe(ROOT / "recipes/quickstart.yaml", settings).recipe
    began = time.process_time()
    predict(recipe, groups, durations, Trouble(), places=256, cores=inf, updates=4)
    return time.process_time() - began
