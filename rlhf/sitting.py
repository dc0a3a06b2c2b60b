"""One sitting of a run: from a command to its end, at the run's beginning or from a checkpoint on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from rlhf.config import Origins
from rlhf.inert import inert
from rlhf.leaving import Leaving
from rlhf.metrics import Clock
from rlhf.provenance import Provenance, check_provenance
from rlhf.recipe import Recipe
from rlhf.resume import ResumePoint, resume_point, rewind
from rlhf.runs.folder import RunFolder
from rlhf.runs.view import View
from rlhf.trainer.checkpoint import CHECKPOINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """What a run works with. `point` is where it goes on; None at its beginning."""

    recipe: Recipe
    folder: RunFolder
    clock: Clock
    view: View
    origins: Origins = field(default_factory=dict)
    point: ResumePoint | None = None
    leaving: Leaving = field(default_factory=Leaving)

    def begin(self, found: Provenance) -> None:
        """Everything has started, and nothing is recorded yet: a run that goes on is cut back to its checkpoint.

        Until here a start that fails has changed nothing in the folder. Raises `ConfigError` for a run that is to go on
        with something else than it began with.
        """
        if self.point is None:
            return
        check_provenance(self.folder.path, self.point.standing.provenance, found)
        rewind(self.folder, self.point)
        self.folder.write_recipe(self.recipe, self.origins)


def say(words: str) -> None:
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
        return RunFolder.create(recipe.run_dir, say), None
    folder = RunFolder.keep(recipe.run_dir, say)
    try:
        point = resume_point(recipe, folder, tell, start_over=start_over)
        if point is None:
            folder.set_records_aside(CHECKPOINTS)
    except BaseException:
        folder.give_back()
        raise
    return folder, point
