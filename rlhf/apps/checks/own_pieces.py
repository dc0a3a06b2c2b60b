"""Import everything of the user's that a recipe names, as the run will: for `rlhf check`, which ends afterwards."""

from __future__ import annotations

import inspect

from rlhf.config import check_call, is_piece, load_bound, load_piece
from rlhf.env.hosting.isolation import check_methods
from rlhf.recipe.schema import Recipe


def import_own_pieces(recipe: Recipe) -> None:
    """Import the recipe's own classes and functions, and check that they accept its arguments.

    `preflight` has imported those of tasks, of tool formats and of a kind of run, and `rlhf check` tries those of a
    reward. Raises `ConfigError` with the cause.
    """
    trainer, environment, agent = recipe.trainer, recipe.environment, recipe.agent
    if is_piece(trainer.loss.policy):
        load_bound(trainer.loss.policy, "trainer.loss.policy", trainer.loss.arguments, given=1)
    if is_piece(trainer.advantage.estimator):
        setting = "trainer.advantage.estimator"
        load_bound(trainer.advantage.estimator, setting, trainer.advantage.arguments, given=1)
    for place, callback in enumerate(recipe.callbacks):
        load_bound(callback.call, f"callbacks.{place}", callback.arguments, given=0)
    for place, name in enumerate(recipe.run.loggers):
        if is_piece(name):
            load_bound(name, f"run.loggers.{place}", {}, given=1)
    if recipe.model.loader is not None:
        load_piece(recipe.model.loader, "model.loader")
    if environment is not None and environment.hosted is not None and not environment.is_replayed:
        for one in (environment, environment.for_evaluation):
            load_bound(environment.hosted, "environment.environment", one.hosted_arguments, given=0)
        if inspect.isclass(made := load_piece(environment.hosted, "environment.environment")):
            check_methods(made, environment.hosted, "environment.environment")
    if agent is not None and agent.program is not None:
        program = load_piece(agent.program, "agent.program")
        check_call(program, agent.program, "agent.program", agent.arguments, given=3)
