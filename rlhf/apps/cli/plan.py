"""`rlhf plan` estimates the memory that a recipe needs, without a GPU, from the `config.json` of its model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from rlhf.cluster.roles import role_table, table
from rlhf.config import shown_value
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.placement import PlacementTarget, describe_placement
from rlhf.recipe.planning.estimate import Estimate
from rlhf.recipe.planning.estimating import estimator
from rlhf.recipe.planning.fitting import Changes, EstimateOf, changes_that_fit, smallest_machine, with_changes
from rlhf.recipe.planning.layout import PROMPT_TOKENS
from rlhf.recipe.planning.machines import GIB, Machine, here, machine_of
from rlhf.recipe.planning.processes import PHASES, MemoryByPhase, Place, bytes_at
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe

IMPOSSIBLE = 1
"""Exit code of a plan that does not fit."""
LORA: Changes = {"model.lora.rank": 32}
ADAPTED = ("rl", "distill", "offline", "sft", "preference")
"""Kinds of runs that can train adapters."""


def run_plan(
    recipe: Path,
    overrides: Sequence[str] = (),
    *,
    gpus: str | None = None,
    nodes: int = 1,
    cores: int | None = None,
    memory: int | None = None,
    config: Path | None = None,
    prompt_tokens: int = PROMPT_TOKENS,
    as_json: bool = False,
) -> int:
    """Print the plan of a recipe on a machine, by default this one. `cores` and `memory` (GiB) are those of a node
    that is not this one. Raises `UserError`."""
    machine = machine_of(gpus, nodes) if gpus else replace(here(), nodes=nodes)
    machine = replace(
        machine, cores=cores or machine.cores, host_memory=memory * GIB if memory else machine.host_memory
    )
    target = PlacementTarget(machine=machine, config=config, prompt_tokens=prompt_tokens, must_fit=False)
    origins = located(load_recipe(recipe, overrides), target=target)
    found, problem = planned(origins.recipe, machine, config=config, prompt_tokens=prompt_tokens)
    if as_json:
        print(json.dumps(asdict(found) | {"fits": found.fits, "problem": problem}, indent=1))
    else:
        chosen = [f"{label}  {text}" for label, text in describe_placement(origins)]
        print("\n".join([*chosen, *plan_lines(found, problem)]))
    return 0 if found.fits else IMPOSSIBLE


def planned(
    recipe: Recipe, machine: Machine, *, config: Path | None = None, prompt_tokens: int = PROMPT_TOKENS
) -> tuple[Estimate, str]:
    """Return the estimate, and what to change where something does not fit. Raises `ModelError`."""
    estimate_of = estimator(recipe, config, prompt_tokens)
    found = estimate_of(recipe, machine)
    return found, "" if found.fits else _advice(recipe, found, estimate_of)


def plan_lines(found: Estimate, problem: str) -> list[str]:
    """Return the plan as lines of text."""
    shape, run = found.shape, found.run
    several = len(run.engines) > 1
    engines = [
        memory_table(f"a process of an engine of {layout.parallel}" if several else "an engine's process", phases)
        for layout, phases in zip(run.engines, found.engines, strict=True)
    ]
    lines = [
        f"model      {shape.name}, {shape.architecture}: {shape.parameters / 1e9:.2f}e9 parameters in {shape.layers} "
        "layers",
        f"machine    {found.machine.described}",
        f"an update  {run.samples:,} samples of {run.prompt} + at most {run.reply:,} tokens",
        "",
        role_table(found.roles),
        "",
        *memory_table("a rank", found.learner),
        *chain(*engines),
    ]
    if found.microbatch is not None:
        fits = f"at most {found.microbatch:,} fit; longest sequence {found.context:,} tokens"
        lines += [f"micro-batch  {run.learner.tokens:,} tokens a rank; {fits if found.context else 'no sequence fits'}"]
    for layout, tokens in zip(run.engines, found.cache_tokens, strict=True):
        each, size = tokens // run.longest, f" of {layout.parallel}" if several else ""
        lines += [f"KV cache     {tokens:,} tokens an engine{size}: {each:,} sequences of full length at once"]
    lacking = [found.placement] if found.placement else []
    lines += [f"does not fit: {one}" for one in (*lacking, *(short.described for short in found.shortages))]
    return [*lines, *(f"what to do: {one}" for one in problem.splitlines())] if problem else [*lines, "it fits"]


def memory_table(process: str, phases: MemoryByPhase) -> list[str]:
    """Make a table of the GiB of every part, with a column for each phase: device memory first, then host memory."""
    lines = []
    places: dict[Place, str] = {"device": "on its device", "host": "in host memory"}
    for place, named in places.items():
        parts = list(dict.fromkeys(part.what for name in PHASES for part in phases[name] if part.place == place))
        if not parts:
            continue
        rows: list[tuple[str, ...]] = [(f"{process}, {named}, GiB", *PHASES)]
        for what in parts:
            sums = [sum(p.bytes for p in phases[name] if p.what == what and p.place == place) for name in PHASES]
            rows.append((what, *(f"{bytes / GIB:.2f}" if bytes else "-" for bytes in sums)))
        rows.append(("all", *(f"{bytes_at(phases[name], place) / GIB:.2f}" for name in PHASES)))
        lines += [table(rows, text_columns=1), ""]
    return lines


def _advice(recipe: Recipe, found: Estimate, estimate_of: EstimateOf) -> str:
    """Recommend changes that make it fit, else name the smallest machine that has settings that fit."""
    machine = found.machine
    if machine.card is None and not (recipe.trainer.deepspeed.gpus_per_rank or recipe.rollout.gpus_per_engine):
        caches = [short.needed for short in found.shortages if short.where.startswith("an engine's KV cache")]
        larger = f"rollout.kv_cache_megabytes={-(-max(caches) // 2**20)}, " if caches else ""
        return f"{larger}a smaller model, or a machine with more memory"
    changes = changes_that_fit(recipe, machine, estimate_of) if machine.card else None
    if changes:
        return as_overrides(changes)
    if changes is not None:
        return "fewer cores (rollout.cpus_per_engine, trainer.deepspeed.cpus_per_rank), or a machine with more"
    advice = ["no settings of this recipe fit this machine"]
    if machine.card and recipe.kind in ADAPTED and recipe.model.lora is None:
        adapted = with_changes(recipe, LORA)
        changes = changes_that_fit(adapted, machine, estimate_of)
        if changes is not None:
            advice.append(f"with LoRA adapters it fits: {as_overrides(LORA | changes)}")
    smallest = smallest_machine(recipe, machine, estimate_of)
    if smallest:
        there, changes = smallest
        advice.append(f"the smallest machine that fits is {there.bought}: {as_overrides(changes)}")
    if recipe.model.lora:
        advice.append("frozen weights of 4 bits (QLoRA), which would need a quarter of the memory, are not supported")
    return "\n".join(advice)


def as_overrides(changes: Mapping[str, str]) -> str:
    """Return changes as the command line takes them."""
    return " ".join(f"{key}={shown_value(value)}" for key, value in changes.items()) or "the recipe's own settings"
