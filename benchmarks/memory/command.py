"""`python -m benchmarks memory`: planned against measured peak resident memory of ranks and engines on a CPU."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.memory.cases import Case, all_cases, measured_bytes
from benchmarks.memory.models import MODELS, save_measured
from benchmarks.memory.process import PROMPT_TOKENS, SEQUENCE_TOKENS
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.layout import engine_layouts, learner_layout
from rlhf.recipe.planning.meta_model import activations_of, shape_of
from rlhf.recipe.planning.processes import engine_phases, learner_phases, peak
from rlhf.recipe.preflight import read_model_config
from rlhf.trainer.rank.zero_config import deepspeed_config
from rlhf.trainer.settings import LearnerSettings

MB = 10**6
ALLOWED = 0.15
"""How far a plan may be from the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Bytes of one case."""

    case: str
    planned: int
    measured: int

    @property
    def ratio(self) -> float:
        return self.planned / self.measured

    @property
    def missed(self) -> bool:
        return abs(self.ratio - 1) > ALLOWED


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    done = read(options.rows) if options.rows else {}
    with tempfile.TemporaryDirectory() as there:
        rows = [row for model in options.models for row in rows_of(model, Path(there) / model, done, options)]
    print("| process | planned MB | measured MB | planned / measured |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.case} | {row.planned / MB:,.0f} | {row.measured / MB:,.0f} | {row.ratio:.2f} |")
    missed = [row.case for row in rows if row.missed]
    ratios = {row.case: round(row.ratio, 3) for row in rows}
    print("RESULT", json.dumps({"benchmark": "memory", "planned_over_measured": ratios, "missed": missed}), flush=True)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def rows_of(model: str, folder: Path, done: Mapping[str, int], options: argparse.Namespace) -> Iterator[Row]:
    """The rows of a model, which is made in `folder`; what `done` holds is only planned again."""
    parameters = save_measured(MODELS[model], folder)
    print(f"{model}: {parameters:,} parameters, micro-batches of {MODELS[model].tokens:,} tokens", flush=True)
    for case in all_cases([model]):
        if options.only not in case.name:
            continue
        measured = done[case.name] if case.name in done else measured_bytes(case, folder)
        row = Row(case=case.name, planned=planned_bytes(case, folder), measured=measured)
        if options.rows and case.name not in done:
            with options.rows.open("a") as file:
                file.write(json.dumps({"case": case.name, "measured": measured}) + "\n")
        print(f"{row.case:<38}{row.planned / MB:6.0f} MB  {row.measured / MB:6.0f} MB  {row.ratio:.2f}", flush=True)
        yield row


def read(rows: Path) -> dict[str, int]:
    """Measured bytes by case, of earlier calls."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    return {row["case"]: row["measured"] for row in map(json.loads, lines)}


def planned_bytes(case: Case, folder: Path) -> int:
    """The plan's peak for one process of the case, which sends and receives no weights."""
    recipe = load_recipe(Path("recipes/quickstart.yaml"), case.overrides(folder)).recipe
    values = read_model_config(folder)
    shape = shape_of(str(folder), values)
    if case.kind == "engine":
        return peak(engine_phases(shape, replace(engine_layouts(recipe)[0], bucket_bytes=0), None), "device")
    activations = activations_of(
        str(folder), values, dtype=case.dtype, checkpointing=False, attention="auto",
        lengths=(PROMPT_TOKENS, SEQUENCE_TOKENS - PROMPT_TOKENS, 1), tokens=MODELS[case.model].tokens,
    )  # fmt: skip
    settings = LearnerSettings(model_path=str(folder), model=recipe.model, trainer=recipe.trainer)
    config = deepspeed_config(settings, recipe.trainer.optimizer, case.ranks, shape.parameters)
    layout = replace(learner_layout(recipe, config["zero_optimization"]), beside_engines=False)
    return peak(learner_phases(shape, layout, activations, heap=False), "device")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--only", default="", help="cases whose name holds this, such as 'ZeRO 3 x 2'")
    parser.add_argument("--rows", type=Path, help="a file of measured rows: added to, and not measured again")
    return parser.parse_args(arguments)
