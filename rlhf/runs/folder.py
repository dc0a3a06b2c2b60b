"""The run folder: the paths of all files of one run, separate from earlier runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rlhf.config import Config, Origins, module_file, named_modules, read_yaml
from rlhf.durable import private_folder, write_durably
from rlhf.errors import UserError
from rlhf.runs.owner import FOLDER as OWNER
from rlhf.runs.owner import Notify, Owner, silent
from rlhf.runs.resolved import resolved_yaml

EPISODES, EVALUATIONS, IMAGES = "episodes", "evaluations", "images"
FOLDERS = ("logs", "checkpoints", "tensorboard")
RECORDS = (
    "recipe.yaml", "recipes", "code", "metrics.jsonl", EPISODES, EVALUATIONS, IMAGES, "spans.jsonl", "summary.json",
    "reward.png", "tensorboard", "trackers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PathOf:
    """The path of a file or folder in a run folder."""

    name: str

    def __get__(self, folder: RunFolder, kind: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run's files, and the lease of the process that writes them; without `owner`, read-only."""

    path: Path
    owner: Owner | None = None

    recipe = PathOf("recipe.yaml")
    recipes = PathOf("recipes")
    """Earlier recipes of a run that was resumed with another: `until-VERSION.yaml` made the updates up to this one."""
    code = PathOf("code")
    """The modules that the recipe names, `MODULE.py`."""
    metrics = PathOf("metrics.jsonl")
    episodes = PathOf(EPISODES)
    evaluations = PathOf(EVALUATIONS)
    spans = PathOf("spans.jsonl")
    restarts = PathOf("restarts.jsonl")
    summary = PathOf("summary.json")
    reward_plot = PathOf("reward.png")
    tokenizer = PathOf("tokenizer")
    logs = PathOf("logs")
    checkpoints = PathOf("checkpoints")
    tensorboard = PathOf("tensorboard")
    trackers = PathOf("trackers")
    """The id that the run has in each experiment tracker."""

    @classmethod
    def create(cls, path: Path, tell: Notify = silent) -> RunFolder:
        """Make and own an empty private run folder; rename an existing one to `NAME.1`, `NAME.2`, ….

        Raises `RunTaken` while another process owns it, and `UserError` if it cannot be made.
        """
        path = path.absolute()  # user code in this process may change its working directory
        with explaining_os_errors(path, "make"):
            private_folder(path)
            owner = Owner.claim(path, tell)
            while any(entry.name != OWNER for entry in path.iterdir()):
                owner.check()
                aside = move_aside(path)
                owner.moved(aside)
                tell(f"{path} existed already: the earlier run is now {aside}")
                owner.give_back()
                private_folder(path)
                owner = Owner.claim(path, tell)  # another process may have been faster
            return cls(path, owner)._with_folders()

    @classmethod
    def keep(cls, path: Path, tell: Notify = silent) -> RunFolder:
        """Own the run folder at `path` with its contents and mode, or make an empty one.

        Raises `RunTaken` while another process owns it, and `UserError` if it cannot be used.
        """
        path = path.absolute()
        with explaining_os_errors(path, "use"):
            private_folder(path)
            return cls(path, Owner.claim(path, tell))._with_folders()

    def _with_folders(self) -> RunFolder:
        try:
            for folder in FOLDERS:
                (self.path / folder).mkdir(exist_ok=True)
        except OSError:
            self.give_back()
            raise
        return self

    def check(self) -> None:
        """Raise `RunTaken` once another process owns the folder. Call this before every irreversible step."""
        if self.owner:
            self.owner.check()

    def give_back(self) -> None:
        """Release the ownership."""
        if self.owner:
            self.owner.give_back()

    def set_records_aside(self, *others: str) -> None:
        """Move the records of an earlier attempt, and `others`, to `aside.N`. Leave its logs, to which the process that
        started this run may be writing."""
        found = [record for name in (*RECORDS, *others) if not is_empty(record := self.path / name)]
        if not found:
            return
        self.check()
        aside = next(place for n in count(1) if not (place := self.path / f"aside.{n}").exists())
        aside.mkdir()
        for record in found:
            record.rename(aside / record.name)
        self._with_folders()

    @property
    def earlier_recipes(self) -> list[tuple[int, Path]]:
        """Those of `recipes`, in order, each with the last update that it made."""
        return [(int(file.stem.rpartition("-")[2]), file) for file in sorted(self.recipes.glob("until-*.yaml"))]

    def write_recipe(self, recipe: Config, origins: Origins, version: int = 0) -> None:
        """Write the resolved recipe, with the origin of each value, and the modules of the user that it names. A run
        that is resumed at a `version` keeps the recipe that made it, if that is another."""
        self.check()
        later = [file for last, file in self.earlier_recipes if last >= version]
        made = [*later, self.recipe][0]
        kept = self.recipes / f"until-{version:06}.yaml"
        if version and read_yaml(made) != recipe.model_dump(mode="json"):
            private_folder(self.recipes)
            write_durably(kept, made.read_text())
            later = [file for file in later if file != kept]
        for file in later:
            file.unlink()
        write_durably(self.recipe, resolved_yaml(recipe, origins))
        for module, file in own_modules(recipe.model_dump()):
            private_folder(self.code)
            write_durably(self.code / f"{module}.py", file.read_text(errors="replace"))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` atomically."""
        self.check()
        write_durably(self.summary, json.dumps(summary, indent=2) + "\n")


@contextmanager
def explaining_os_errors(path: Path, what: str) -> Iterator[None]:
    """Turn an `OSError` of the block into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {what} the run folder {path} ({error.strerror}); set run.dir to another") from None


def own_modules(values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Iterate over the modules that a recipe names and that are not installed, each with its file."""
    for module in named_modules(values):
        folders = (*map(Path, values.get("python_path", ())), Path.cwd())
        if file := next(filter(None, (module_file(folder, module) for folder in folders)), None):
            yield module, file


def move_aside(path: Path) -> Path:
    """Rename `path` to the first free `NAME.n`; return the new name."""
    return path.rename(next(aside for n in count(1) if not (aside := path.with_name(f"{path.name}.{n}")).exists()))


def is_empty(path: Path) -> bool:
    """Whether the path is absent or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))
