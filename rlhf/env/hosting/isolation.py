"""Run the code of environments: what thread and process isolation share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rlhf.chat.shown import read_images
from rlhf.config import check_call, load_piece
from rlhf.env.encoding import dumps, spec_data, spec_from
from rlhf.env.wire import Undecodable
from rlhf.errors import ConfigError, DataError, EnvironmentFailed, Raised, catch, describe_error
from rlhf.protocols import AsyncEnvironment, LocalEnvironment
from rlhf.types import EnvironmentSpec, Message, Observation, Task, finite_number
from rlhf.untrusted_text import InvalidJson, has_surrogate, read_json

T = TypeVar("T")
START_SECONDS = 120.0
"""An environment's module may import heavy libraries."""
METHODS: Mapping[str, tuple[int, Mapping[str, Any]]] = {"reset": (1, {"seed": 0}), "step": (1, {}), "close": (0, {})}
"""The number of values and the keyword arguments that each method of an environment receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines in seconds for each method of an environment, its constructor included."""

    open_seconds: float = 50.0
    reset_seconds: float = 50.0
    step_seconds: float = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Factory:
    """An environment by name: `module:Class` and its constructor's arguments. `variables` are the environment variables
    that separate processes receive in addition to the usual ones and to those that `arguments` name."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    variables: tuple[str, ...] = ()

    def load(self) -> Callable[[], LocalEnvironment | AsyncEnvironment]:
        """Import the class, with its arguments bound. Raises `ConfigError` when it cannot be imported."""
        piece = load_piece(self.name, "the environment")
        return lambda: piece(**self.arguments)


class BlockingMethods:
    """Plain methods over an environment with `async` methods, which run on an event loop of this object."""

    def __init__(self, environment: AsyncEnvironment) -> None:
        self.spec, self._environment, self._runner = environment.spec, environment, asyncio.Runner()

    def reset(self, task: Task, *, seed: int) -> Observation:
        return self._runner.run(_awaited(self._environment.reset(task, seed=seed)))

    def step(self, action: Message) -> Observation:
        return self._runner.run(_awaited(self._environment.step(action)))

    def close(self) -> None:
        with self._runner:
            self._runner.run(_awaited(self._environment.close()))


async def _awaited(call: Awaitable[T]) -> T:
    return await call


def is_async(environment: LocalEnvironment | AsyncEnvironment) -> bool:
    return inspect.iscoroutinefunction(getattr(environment, "step", None))


def blocking(environment: LocalEnvironment | AsyncEnvironment) -> LocalEnvironment:
    return BlockingMethods(environment) if is_async(environment) else environment  # type: ignore[arg-type,return-value]


def checked(name: str, observation: object) -> Observation:
    """Return an observation as plain values. Raises `EnvironmentFailed` for anything else."""
    if not isinstance(observation, Observation):
        raise EnvironmentFailed(name, "protocol", f"it returned {observation!r:.100}, not an Observation")
    if wrong := _wrong_with(observation):
        raise EnvironmentFailed(name, "protocol", wrong)
    reward, messages = finite_number(observation.reward), observation.messages
    if any(message.images for message in messages):
        try:
            messages = tuple(_with_read_images(message) for message in messages)
        except DataError as error:
            raise EnvironmentFailed(name, "protocol", str(error)) from None
    if reward is observation.reward and messages is observation.messages and isinstance(messages, tuple):
        return observation  # a copy costs as much as parsing a frame
    return replace(observation, reward=reward, messages=tuple(messages))


def _with_read_images(message: Message) -> Message:
    return replace(message, images=read_images(message.images, message.content)) if message.images else message


def _wrong_with(observation: Observation) -> str | None:
    """Return why an observation is invalid; None if it is valid. No tokenizer reads a lone surrogate."""
    if not isinstance(observation.messages, (tuple, list)):
        return f"its messages are {observation.messages!r:.80}, not a tuple of Message"
    for message in observation.messages:
        if not isinstance(message, Message) or not isinstance(message.content, str):
            return f"a message is {message!r:.80}, not a Message with text"
        if not isinstance(message.images, (tuple, list)):
            return f"the images of a message are {message.images!r:.80}, not a tuple"
        if has_surrogate(message.content):
            said = message.content.encode(errors="backslashreplace").decode()
            return f"its text has a lone surrogate: {said!r:.80}"
    for end in (observation.terminated, observation.truncated):
        if not isinstance(end, (bool, np.bool_)):
            return f"terminated or truncated is {end!r:.40}, not true or false"
    if not isinstance(observation.info, Mapping):
        return f"its info is {observation.info!r:.40}, not a mapping"
    if observation.reward is not None and finite_number(observation.reward) is None:
        return f"its reward is {observation.reward!r:.40}, not a number"
    return None


def check_methods(environment: object, name: str, setting: str) -> None:
    """Check that an environment, or its class, has the methods of one, with their parameters. Raises `ConfigError`."""
    made = environment if inspect.isclass(environment) else type(environment)
    for method, (given, arguments) in METHODS.items():
        call = inspect.getattr_static(made, method, None)
        if inspect.isfunction(call):
            check_call(partial(call, environment), f"{name}.{method}", setting, arguments, given=given)
        elif not (call or hasattr(environment, method) or hasattr(made, "__getattr__")):
            raise ConfigError(f"{setting} is {name}, which has no method {method}; it needs {', '.join(METHODS)}")


def load_spec(factory: Factory, create: Callable[[], LocalEnvironment | AsyncEnvironment]) -> EnvironmentSpec:
    """Read the spec from one environment that is made and closed. Raises `ConfigError` when that fails."""

    def tried() -> object:
        made = create()
        check_methods(made, factory.name, "the environment")
        environment = blocking(made)
        spec = environment.spec
        environment.close()
        return spec

    spec = catch(tried)
    if isinstance(spec, Raised):
        if isinstance(spec.error, ConfigError):
            raise spec.error
        cause = describe_error(spec.error)
        raise ConfigError(f"environment {factory.name} cannot be made with its arguments: {cause}") from spec.error
    if not isinstance(spec, EnvironmentSpec):
        raise ConfigError(f"environment {factory.name}: its spec is {spec!r:.100}, not an EnvironmentSpec")
    try:
        return spec_from(read_json(dumps(spec_data(spec))))  # in every isolation the same as for clients of a server
    except (Undecodable, InvalidJson) as error:
        raise ConfigError(f"environment {factory.name}: {error}") from None


def raised_failure(name: str, method: str, error: BaseException) -> EnvironmentFailed:
    """Return the failure of a method that raised `error`; an `EnvironmentFailed` of the environment stays as it is."""
    if isinstance(error, EnvironmentFailed):
        return error
    if isinstance(error, InvalidJson):
        return EnvironmentFailed(name, "protocol", f"{method}: {error}")
    return EnvironmentFailed(name, "raised", f"{method}: {describe_error(error)}")
