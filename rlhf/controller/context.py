"""What one process works with on a run, fresh or resumed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from rlhf.config import Origins
from rlhf.controller.preemption import Leaving
from rlhf.controller.resume import ResumePoint, resume_point, rewind
from rlhf.http.inert import inert
from rlhf.recipe.schema import Recipe
from rlhf.runs.folder import RunFolder
from rlhf.runs.provenance import Provenance, check_provenance, provenance
from rlhf.runs.tracing import Clock
from rlhf.runs.view import View
from rlhf.trainer.checkpoint import CHECKPOINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One process lifetime of a run. `point` is where it goes on; None for a fresh one."""

    recipe: Recipe
    folder: RunFolder
    clock: Clock
    view: View
    origins: Origins = field(default_factory=dict)
    point: ResumePoint | None = None
    leaving: Leaving = field(default_factory=Leaving)


async def begun(context: RunContext, model: str) -> Provenance:
    """Everything has started, from `model`, and nothing is recorded yet: a run that goes on is cut back to its
    checkpoint. What it began with, by digest.

    Until here a start that fails has changed nothing in the folder. Raises `ConfigError` for a run that is to go on
    with something else than it began with.
    """
    recipe = context.recipe
    found = await asyncio.to_thread(
        provenance,
        model,
        data=recipe.data,
        reference=recipe.trainer.reference_path,
        trust_remote_code=recipe.model.trust_remote_code,
    )
    begin(context, found)
    return found


def begin(context: RunContext, found: Provenance) -> None:
    """The same for what it was `found` to begin with."""
    if context.point is None:
        return
    check_provenance(context.folder.path, context.point.trainer_state.provenance, found)
    rewind(context.folder, context.point)
    context.folder.write_recipe(context.recipe, context.origins)


def print_notice(words: str) -> None:
    """For a person who waits, before there is a view."""
    print(inert(words), file=sys.stderr, flush=True)


def run_folder(
    recipe: Recipe, *, resume: bool, start_over: bool = False, tell: Callable[[str], None]
) -> tuple[RunFolder, ResumePoint | None]:
    """The folder to write to, which this process owns from now on, and where to go on.

    A run that is not resumed has a new folder. One that is resumed keeps it, with its logs; what there is of a run
    without any checkpoint is set aside, and what there is of one to `start_over` with its checkpoints. Raises
    `UserError`.
    """
    if not resume:
        return RunFolder.create(recipe.run_dir, print_notice), None
    folder = RunFolder.keep(recipe.run_dir, print_notice)
    with ExitStack() as failing:
        failing.callback(folder.give_back)
        point = resume_point(recipe, folder, tell, start_over=start_over)
        if point is None:
            folder.set_records_aside(CHECKPOINTS)
        failing.pop_all()
    return folder, point
