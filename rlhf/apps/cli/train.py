"""`rlhf train` trains one recipe in one run folder. A supervisor process ends everything that the controller starts."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlhf.apps.deploy.rendezvous import joining
from rlhf.apps.failures import print_failure
from rlhf.cluster.supervisor import Ended, GuardedProgram, Pulse, supervise_starts
from rlhf.controller.attempt import Attempt, RestartRule
from rlhf.controller.preemption import EXIT_SAVED, Leaving
from rlhf.errors import PlacementError, RlhfError, RunTaken, UserError
from rlhf.recipe.loading import LoadedRecipe, load_recipe
from rlhf.recipe.planning.memory_check import check_memory
from rlhf.recipe.preflight import preflight
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe
from rlhf.runs.folder import RunFolder
from rlhf.runs.restarts import Restart
from rlhf.runs.summary import Summary
from rlhf.tracing import Clock
from rlhf.trainer.checkpoint import CHECKPOINTS, checkpoints, is_whole
from rlhf.trainer.config import FIRST_SAVE_SECONDS, SaveEvery


def run_train(
    recipe: Path,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    start_over: bool = False,
    address: str | None = None,
    rendezvous: Path | None = None,
) -> int:
    """Check the recipe, then train under supervision. Raises `UserError` before anything has started."""
    overrides = [*overrides, *([f"cluster.address={address}"] if address else joining(rendezvous))]
    clock, leaving = Clock(), Leaving.of_job()
    leaving.ask_at(signal.SIGUSR1)
    if start_over and not resume:
        raise UserError("--start-over goes with --resume; without --resume every run starts in a new folder")
    loaded = located(load_recipe(recipe, overrides), resumed=resume)  # once: a restart may find GPUs that are not free
    recipe_here = loaded.recipe
    preflight(recipe_here)
    check_memory(recipe_here)
    rule = RestartRule(RunFolder(recipe_here.run_dir), recipe_here.run.max_restarts)

    def start_after(ended: Ended) -> GuardedProgram | None:
        restart = rule.after(ended, lambda words: print(f"rlhf: {words}", file=sys.stderr))
        if restart is not None:
            return partial(run_controller, loaded, Clock(), leaving, resume=True, restart=restart)
        if ended.cause is not None:
            print_where_it_is(recipe_here)
        return None

    watched = recipe_here.cluster.kind != "local"
    return supervise_starts(
        partial(run_controller, loaded, clock, leaving, resume=resume, start_over=start_over),
        start_after,
        silence_seconds=60 * recipe_here.run.silence_minutes if watched else math.inf,
        saves_at_ctrl_c=True,
    )


def run_controller(
    loaded: LoadedRecipe,
    clock: Clock,
    leaving: Leaving,
    pulse: Pulse,
    *,
    resume: bool,
    start_over: bool = False,
    restart: Restart | None = None,
) -> int:
    """Run the controller's process, which makes the heavy imports. The guard decides about failures that a restart may
    cure."""
    from rlhf.api import Trainer

    folder = loaded.recipe.run_dir

    def stop(number: int, frame: object) -> None:
        leaving.stopped = True
        as_ctrl_c(number, frame)

    signal.signal(signal.SIGTERM, stop)
    try:
        attempt = Attempt(restart=restart, pulse=pulse)
        summary = Trainer(loaded, clock=clock).fit(
            resume=resume, start_over=start_over, leaving=leaving, attempt=attempt
        )
    except RunTaken as error:
        return print_failure(error)  # the logs belong to another run
    except RlhfError as error:
        if leaving.stopped:
            return stopped(loaded.recipe)
        code = print_failure(error)
        if error.mended_by_restart:
            pulse.fail(str(error))
        else:
            print_where_it_is(loaded.recipe)
        lost_room = restart is not None and isinstance(error, PlacementError)
        return RlhfError.exit_code if lost_room else code  # it had room before: no error of the user
    except KeyboardInterrupt:
        return stopped(loaded.recipe)
    print(closing_words(summary, folder))
    if summary.saved:
        print(f"{summary.outcome}; to continue, run the same command with --resume", flush=True)
        return EXIT_SAVED
    return 0


def stopped(recipe: Recipe) -> int:
    """Report a stopped run, and return its exit code."""
    print(f"stopped; the results so far are in {recipe.run_dir}", file=sys.stderr)
    print(what_is_saved(recipe.run_dir, recipe.trainer.save_every), file=sys.stderr)
    return 130


def print_where_it_is(recipe: Recipe) -> None:
    """Print where the logs of a failed run are, and its checkpoint."""
    print(f"the logs of every process are in {recipe.run_dir / 'logs'}", file=sys.stderr)
    print(what_is_saved(recipe.run_dir, recipe.trainer.save_every), file=sys.stderr, flush=True)


def what_is_saved(folder: Path, save_every: SaveEvery) -> str:
    """Say from which checkpoint a run that ended early continues, or why it has none."""
    whole = [path for path in checkpoints(folder / CHECKPOINTS) if is_whole(path)]
    if whole:
        return f"saved: {whole[-1]}; the same command with --resume continues from it"
    when: dict[SaveEvery, str] = {
        "auto": f"the first is due after {FIRST_SAVE_SECONDS:.0f} s of training",
        0: "it comes at the end",
    }
    due = when.get(save_every, f"the first is due after update {save_every}")
    return f"the run ended before its first checkpoint, so nothing is saved; {due} (trainer.save_every: {save_every})"


def as_ctrl_c(number: int, frame: object) -> None:
    """Handle SIGTERM like Ctrl-C: clusters end a job by SIGTERM, and the run needs time to close its records.

    Only the first signal counts: a whole process group gets it and each supervisor forwards it, but a second Ctrl-C
    would interrupt the end.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


def closing_words(summary: Summary, folder: Path) -> str:
    """Summarize a finished run in a few lines for the user."""
    lines = []
    if summary.eval_reward_start is not None and summary.eval_reward_end is not None:
        lines.append(
            f"held-out reward {summary.eval_reward_start:.3f} → {summary.eval_reward_end:.3f} "
            f"on {summary.eval_problems} problems"
        )
    lines += [
        f"  {name}: " + ", ".join(f"{k} {v:.3f}" for k, v in (found.end or found.start).items() if "@" in k)
        for name, found in summary.evaluations.items()
        if len(summary.evaluations) > 1
    ]
    lines += [
        f"{name}: accuracy {found.start['accuracy']:.3f} → {found.end['accuracy']:.3f} on {found.problems} pairs"
        for name, found in summary.evaluations.items()
        if found.end and "accuracy" in found.end
    ]
    lines.append(
        f"{summary.updates} updates, {summary.samples:,} samples, {summary.wall_seconds:.0f} s "
        f"(first update after {summary.seconds_to_first_update or 0:.0f} s)"
    )
    lines.append(f"everything is in {folder}; `rlhf view {folder}` shows it in the browser")
    return "\n".join(lines)
