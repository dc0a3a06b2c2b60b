"""`python -m benchmarks memory`: planned against measured peak resident memory of ranks and engines on a CPU."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.memory.cases import Case, all_cases, measured_bytes
from benchmarks.memory.models import MODELS, save_measured
from benchmarks.memory.process import PROMPT_TOKENS, SEQUENCE_TOKENS
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.layout import engine_layout, learner_layout
from rlhf.recipe.planning.meta import activations_of, shape_of
from rlhf.recipe.planning.processes import engine_phases, learner_phases, peak
from rlhf.recipe.preflight import read_model_config
from rlhf.trainer.rank.zero import deepspeed_config
from rlhf.trainer.settings import LearnerSettings

MB = 10**6
ALLOWED = 0.15
"""How far a plan may be from the measurement."""


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    missed, ratios = [], {}
    with tempfile.TemporaryDirectory() as there:
        for model in options.models:
            folder = Path(there) / model
            parameters = save_measured(MODELS[model], folder)
            print(f"{model}: {parameters:,} parameters, micro-batches of {MODELS[model].tokens:,} tokens", flush=True)
            for case in all_cases([model]):
                planned = planned_bytes(case, folder)
                measured = measured_bytes(case, folder)
                ratios[case.name] = round(planned / measured, 3)
                missed += [case.name] if abs(planned / measured - 1) > ALLOWED else []
                print(
                    f"{case.name:<34}planned {planned / MB:6.0f} MB  measured {measured / MB:6.0f} MB  "
                    f"ratio {planned / measured:.2f}",
                    flush=True,
                )
    print("RESULT", json.dumps({"benchmark": "memory", "planned_over_measured": ratios, "missed": missed}), flush=True)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def planned_bytes(case: Case, folder: Path) -> int:
    """The plan's peak for one process of the case."""
    recipe = load_recipe(Path("recipes/quickstart.yaml"), case.overrides(folder)).recipe
    values = read_model_config(folder)
    shape = shape_of(str(folder), values)
    if case.kind == "engine":
        return peak(engine_phases(shape, engine_layout(recipe), None), "device")
    activations = activations_of(
        str(folder), values, dtype=case.dtype, checkpointing=False, attention="auto",
        lengths=(PROMPT_TOKENS, SEQUENCE_TOKENS - PROMPT_TOKENS, 1),
    )  # fmt: skip
    settings = LearnerSettings(model_path=str(folder), model=recipe.model, trainer=recipe.trainer)
    config = deepspeed_config(settings, recipe.trainer.optimizer, case.ranks, shape.parameters)
    layout = learner_layout(recipe, config["zero_optimization"])
    return peak(learner_phases(shape, layout, activations, heap=False), "device")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=("10M", "75M"))
    return parser.parse_args(arguments)
