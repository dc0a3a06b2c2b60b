"""User-defined callbacks of a recipe: construction, and wrapping so that their failures are named."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rlhf.config import load_piece
from rlhf.controller.run import Callback, Run
from rlhf.errors import (
    CallbackFailed,
    ConfigError,
    Raised,
    RlhfError,
    catch,
    catch_awaiting,
    describe_error,
    logged_error,
)
from rlhf.recipe.schema import CallbackConfig
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.summary import Summary


def user_callbacks(configs: Sequence[CallbackConfig], given: Sequence[Callback] = ()) -> tuple[Callback, ...]:
    """Return the callbacks of a recipe, then those `given`. Raises `ConfigError` for one that cannot be built, or is
    not a callback."""
    built = [_built(f"callbacks.{number}", config) for number, config in enumerate(configs)]
    return tuple(Guarded(callback) for callback in (*built, *given))


def _built(setting: str, config: CallbackConfig) -> Callback:
    make = load_piece(config.call, setting)
    callback = catch(lambda: make(**config.arguments))
    if isinstance(callback, Raised):
        raise ConfigError(
            f"{setting}: {config.call} cannot be made: {describe_error(callback.error)}"
        ) from callback.error
    if not isinstance(callback, Callback):
        raise ConfigError(f"{setting}: {config.call} is a {type(callback).__name__}, not an rlhf.Callback")
    return callback


class Guarded(Callback):
    """A user's callback, whose failure ends the run with a one-line error. Its methods may be plain functions."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    async def on_train_begin(self, run: Run) -> None:
        await self._call(self._callback.on_train_begin, run)

    async def on_step_end(self, run: Run) -> None:
        await self._call(self._callback.on_step_end, run)

    async def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        await self._call(self._callback.on_evaluate, run, evaluation)

    async def on_save(self, run: Run, checkpoint: Path) -> None:
        await self._call(self._callback.on_save, run, checkpoint)

    def on_train_end(self, run: Run, summary: Summary) -> None:
        method = self._callback.on_train_end
        self._check(method, catch(lambda: method(run, summary)))

    async def _call(self, method: Callable[..., Awaitable[None] | None], *arguments: object) -> None:
        async def answered() -> object:
            answer: object = method(*arguments)
            return await answer if inspect.isawaitable(answer) else answer

        self._check(method, await catch_awaiting(answered()))

    def _check(self, method: Callable[..., object], answer: object) -> None:
        """Check the result of one method. Named failures are raised unchanged."""
        if not isinstance(answer, Raised):
            return
        if isinstance(answer.error, RlhfError):
            raise answer.error
        line = logged_error(answer.error)
        raise CallbackFailed(f"{type(self._callback).__name__}.{method.__name__} failed: {line}") from answer.error
