"""The shared context of one process of a run, fresh or resumed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from rlhf.config import Origins
from rlhf.controller.attempt import Attempt
from rlhf.controller.preemption import Leaving
from rlhf.controller.resume import ResumePoint, resume_point, rewind
from rlhf.recipe.schema import Recipe
from rlhf.runs.folder import RunFolder
from rlhf.runs.provenance import Provenance, check_provenance, provenance
from rlhf.runs.view import View
from rlhf.tracing import Clock
from rlhf.trainer.checkpoint import CHECKPOINTS
from rlhf.untrusted_text import escape_controls


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One process lifetime of a run. `point` is the checkpoint to resume from; None for a fresh run."""

    recipe: Recipe
    folder: RunFolder
    clock: Clock
    view: View
    origins: Origins = field(default_factory=dict)
    point: ResumePoint | None = None
    leaving: Leaving = field(default_factory=Leaving)
    attempt: Attempt = field(default_factory=Attempt)


async def begun(context: RunContext, model: str) -> Provenance:
    """Truncate a resumed run to its checkpoint, after everything has started from `model` and before anything is
    recorded. Returns the digests of the run's inputs.

    A start that fails before this point has changed nothing in the folder. Raises `ConfigError` for a resumed run whose
    inputs differ from those it began with.
    """
    recipe = context.recipe
    found = await asyncio.to_thread(
        provenance,
        model,
        data=recipe.data,
        others={
            "trainer.reference_path": recipe.trainer.reference_path,
            **{f"policies.{name}.adapter": policy.adapter for name, policy in recipe.policies.items()},
            **{f"policies.{name}.model": own.path for name, policy in recipe.policies.items() if (own := policy.model)},
        },
        trust_remote_code=recipe.model.trust_remote_code,
    )
    begin(context, found)
    return found


def begin(context: RunContext, found: Provenance) -> None:
    """Do the same as `begun` for inputs whose digests were `found` already."""
    if context.point is None:
        return
    check_provenance(context.folder.path, context.point.trainer_state.provenance, found)
    rewind(context.folder, context.point)
    context.folder.write_recipe(context.recipe, context.origins, context.point.version)


def print_notice(words: str) -> None:
    """Print a message for the waiting user, before there is a view."""
    print(escape_controls(words), file=sys.stderr, flush=True)


def run_folder(
    recipe: Recipe, *, resume: bool, start_over: bool = False, tell: Callable[[str], None]
) -> tuple[RunFolder, ResumePoint | None]:
    """Return the folder to write to, which this process owns from now on, and the checkpoint to resume from.

    Without `resume` the run gets a new folder. With it, the run keeps its folder and logs; records of a run without any
    checkpoint are moved aside; with `start_over`, records and checkpoints are. Raises `UserError`.
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
