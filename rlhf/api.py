"""Train from Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, overload

from rlhf.cluster.console import lasting
from rlhf.cluster.loop_thread import run_anywhere
from rlhf.controller.attempt import Attempt
from rlhf.controller.checkpoints import saying_what_is_intact
from rlhf.controller.context import RunContext, run_folder
from rlhf.controller.inference import evaluate_model, replies
from rlhf.controller.preemption import Leaving
from rlhf.controller.resume import ResumePoint
from rlhf.controller.run import Callback
from rlhf.controller.train import train_recipe
from rlhf.errors import UserError, logged_in
from rlhf.recipe.from_python import recipe_from_python
from rlhf.recipe.loading import LoadedRecipe, load_recipe
from rlhf.recipe.placement import describe_placement
from rlhf.recipe.preflight import preflight
from rlhf.recipe.resolve import check_evaluates, located, recipe_of_run
from rlhf.recipe.shipped import recipe_file
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.folder import RunFolder
from rlhf.runs.live_view import make_view
from rlhf.runs.model_card import export_model
from rlhf.runs.summary import Summary
from rlhf.runs.view import BothViews, PlainView
from rlhf.tracing import Clock
from rlhf.trainer.checkpoint import model_folder


class Trainer:
    """Runs one recipe from Python as `rlhf train` does, but without a supervisor process.

    >>> trainer = Trainer(model="Qwen/Qwen2.5-0.5B-Instruct", data=rows, reward=my_reward, trainer={"updates": 50})
    >>> trainer.fit().eval_reward_end
    >>> trainer.predict("52431")
    """

    def __init__(
        self,
        recipe: LoadedRecipe | Mapping[str, Any] | None = None,
        *,
        clock: Clock | None = None,
        callbacks: Sequence[Callback] = (),
        **sections: Any,
    ) -> None:
        """Take a recipe as a mapping, as keyword arguments, or both, keyword arguments win. `model` may be a path,
        `data` rows or a path, `reward` a function; a function may replace any `module:function`.

        `callbacks` come after those of the recipe. Raises `ConfigError`.
        """
        given = recipe if isinstance(recipe, LoadedRecipe) else recipe_from_python(recipe or {}, sections)
        self._given, self._callbacks = given, tuple(callbacks)
        self.loaded = located(given)
        self.recipe = self.loaded.recipe
        self._clock = clock
        self._trained_in: Path | None = None

    @classmethod
    def from_recipe(cls, path: str | Path, *overrides: str, callbacks: Sequence[Callback] = ()) -> Trainer:
        """Read a recipe (a file, a folder with `recipe.yaml`, or the name of a shipped one) and apply `key=value`
        overrides. Raises `ConfigError`."""
        return cls(load_recipe(recipe_file(path), overrides), callbacks=callbacks)

    @classmethod
    def from_checkpoint(cls, path: str | Path, *overrides: str, callbacks: Sequence[Callback] = ()) -> Trainer:
        """Take the policy of a run folder's newest checkpoint, or of the checkpoint `path`, and the run's recipe with
        `key=value` overrides. `fit(resume=True)` continues in its folder from the newest checkpoint. Raises
        `ConfigError` if the folder has no run, and `CheckpointError` without a finished checkpoint.
        """
        checkpoint = Path(path).expanduser().absolute()
        recipe = recipe_of_run(checkpoint)
        model_folder(checkpoint)
        trainer = cls.from_recipe(recipe, f"run.dir={recipe.parent}", *overrides, callbacks=callbacks)
        trainer._trained_in = checkpoint
        return trainer

    def fit(
        self,
        *,
        resume: bool = False,
        start_over: bool = False,
        leaving: Leaving | None = None,
        attempt: Attempt | None = None,
    ) -> Summary:
        """Train to the end of the budget. Raises the run's first failure; the run folder is complete then too.

        With `resume` an earlier run in the same folder continues from its newest checkpoint. If all its checkpoints are
        damaged, it begins again only with `start_over`. `leaving` may end the run at an earlier update, with a
        checkpoint; the summary then has `saved`. `attempt` is of a guard that starts the run again after failures. The
        trained policy is that of the newest checkpoint.
        """
        self.loaded = located(self._given, resumed=resume)
        self.recipe = self.loaded.recipe
        preflight(self.recipe)
        messages = [f"{label}: {text}" for label, text in describe_placement(self.loaded)]
        folder, point = run_folder(self.recipe, resume=resume, start_over=start_over, tell=messages.append)
        self._trained_in = folder.path
        try:
            with saying_what_is_intact(folder):
                return self._run(folder, point, messages, leaving or Leaving(), attempt or Attempt())
        except UserError as error:
            if not folder.summary.is_file():
                folder.write_summary(asdict(Summary(name=self.recipe.name, outcome=str(error))))
            raise
        finally:
            folder.give_back()

    def _run(
        self,
        folder: RunFolder,
        point: ResumePoint | None,
        messages: Sequence[str],
        leaving: Leaving,
        attempt: Attempt,
    ) -> Summary:
        """Train in the run folder and return the summary."""
        if point is None:
            folder.write_recipe(self.recipe, self.loaded.origins)
        live = self.recipe.run.live and self.recipe.cluster.kind != "local"  # a debugger wants the terminal for itself
        log_file = folder.logs / "controller.log"
        with log_file.open("a") as log, logged_in(log), redirect_stdout(lasting(sys.stdout)) as stdout:
            shown = make_view(self.recipe.name, self.recipe.trainer.updates, stdout, live=live)
            with closing(BothViews(shown, PlainView(log))) as view:
                for words in filter(None, (attempt.record(folder, point.version if point else 0), *messages)):
                    view.message(words)
                context = RunContext(
                    recipe=self.recipe,
                    folder=folder,
                    clock=self._clock or Clock(),
                    view=view,
                    origins=self.loaded.origins,
                    point=point,
                    leaving=leaving,
                    attempt=attempt,
                )
                return run_anywhere(
                    train_recipe(context, self._callbacks), lambda: leaving.ask("the program was interrupted")
                )

    def evaluate(self) -> Evaluation:
        """Evaluate the trained policy on the recipe's held-out tasks. Raises `ConfigError` if it has none."""
        check_evaluates(self.recipe, self.recipe.name)
        return evaluate_model(self.recipe, self._trained)

    @overload
    def predict(self, prompt: str, *, max_tokens: int = ..., temperature: float = ..., seed: int = ...) -> str: ...
    @overload
    def predict(
        self, prompt: list[str], *, max_tokens: int = ..., temperature: float = ..., seed: int = ...
    ) -> list[str]: ...
    def predict(
        self, prompt: str | list[str], *, max_tokens: int = 128, temperature: float = 0.0, seed: int = 0
    ) -> str | list[str]:
        """Return the trained policy's reply to a user message; for several messages, a list of replies."""
        prompts = [prompt] if isinstance(prompt, str) else prompt
        found = replies(self._trained, prompts, max_tokens=max_tokens, temperature=temperature, seed=seed)
        return found[0] if isinstance(prompt, str) else found

    def save(self, path: str | Path) -> Path:
        """Write the trained policy as a Hugging Face folder with a model card. Raises `UserError` if `path` exists and
        is not empty."""
        return export_model(self._trained, Path(path))

    @property
    def _trained(self) -> str:
        if self._trained_in is None:
            raise UserError("nothing is trained yet: call fit() first, or begin with Trainer.from_checkpoint")
        return model_folder(self._trained_in)
