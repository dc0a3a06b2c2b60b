"""One sitting of a run: from a command to its end, at the run's beginning or from a checkpoint on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlhf.leaving import Leaving
from rlhf.metrics import Clock
from rlhf.recipe import Recipe
from rlhf.resume import ResumePoint, resume_point, rewind
from rlhf.runs.folder import RunFolder
from rlhf.runs.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """What a run works with. `point` is where it goes on; None at its beginning."""

    recipe: Recipe
    folder: RunFolder
    clock: Clock
    view: View
    point: ResumePoint | None = None
    leaving: Leaving = field(default_factory=Leaving)


def run_folder(recipe: Recipe, *, resume: bool, tell: Callable[[str], None]) -> tuple[RunFolder, ResumePoint | None]:
    """The folder to write to, and where to go on. A run that is not resumed has a new folder.

    One that is resumed keeps it, with its logs, and is cut back to the checkpoint; what there is of a run without any
    checkpoint is set aside. Raises `UserError`.
    """
    if not resume:
        return RunFolder.create(recipe.run_dir), None
    folder = RunFolder.keep(recipe.run_dir)
    point = resume_point(recipe, folder, tell)
    if point is None:
        folder.set_records_aside()
    else:
        rewind(folder, point)
    return folder, point
