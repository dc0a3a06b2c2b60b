"""Adapter for Gymnasium's environments, for instance CartPole and FrozenLake: observations and actions as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from rlhf.config import load_piece
from rlhf.env.adapters import spaces
from rlhf.env.adapters.imports import imported
from rlhf.env.single_turn import first_messages
from rlhf.errors import ConfigError
from rlhf.types import EnvironmentSpec, Message, Observation, Task


class GymnasiumEnvironment:
    """One episode of the environment that Gymnasium registers as `id`, made with `options`. The first observation
    starts with the task's messages. Observations become text: numbers, or one digit each with `bins` (a pair `[low,
    high]` for each number), or the result of the function named by `text`. An action is the last word of the reply: a
    number, or its name in `actions`; with a Text space it is the whole reply. Rewards are multiplied by `reward_scale`.
    A reply that is not an action gets an explanation, but neither a step nor a reward; after `misunderstood_limit` such
    replies the episode is truncated. Raises `ConfigError`."""

    library: ClassVar[str] = "Gymnasium"

    def __init__(
        self,
        id: str,
        *,
        options: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        bins: Sequence[Sequence[float]] | None = None,
        text: str | None = None,
        misunderstood_limit: int = 3,
        reward_scale: float = 1.0,
    ) -> None:
        self._game = self.make_game(id, options or {})
        self._actions = action_reader(self._game.action_space, actions)
        self._text = observation_writer(self._game.observation_space, bins, text)
        self._patience, self._scale = misunderstood_limit, reward_scale
        self.spec = EnvironmentSpec(name=id, description=f"{id} of {self.library}; answer with {self._actions.answers}")

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the actions of a Discrete space. Raises `ConfigError` for another space."""
        if isinstance(self._actions, spaces.TextActions):
            raise ConfigError(f"the actions of {self.spec.name} are free text and have no names")
        return self._actions.names

    def make_game(self, id: str, options: Mapping[str, Any]) -> Any:
        """Return the environment, with the time limit of its registration. Raises `ConfigError`."""
        gymnasium = imported("gymnasium")
        try:
            return gymnasium.make(id, **options)
        except (gymnasium.error.Error, TypeError) as error:
            raise ConfigError(f"gymnasium cannot make {id} with {dict(options)}: {error}") from error

    def reset(self, task: Task, *, seed: int) -> Observation:
        seen, info = self._game.reset(seed=seed)
        return Observation(messages=first_messages(task, self._text(seen)), info=spaces.records(info))

    def step(self, action: Message) -> Observation:
        chosen = self._actions.action(action.content)
        if chosen is None:
            self._patience -= 1
            text = f"That is not an action. Answer with {self._actions.answers}"
            messages = (Message(role="user", content=text),)
            return Observation(messages=messages, truncated=self._patience <= 0, info={"misunderstood": True})
        seen, reward, terminated, truncated, info = self._game.step(chosen)
        return spaces.step_observation(self._text(seen), float(reward) * self._scale, terminated, truncated, info)

    def close(self) -> None:
        self._game.close()


def action_reader(space: Any, names: Sequence[str] | None) -> spaces.Choices | spaces.TextActions:
    """Return the parser from replies to actions. Raises `ConfigError` for a space that has no text form."""
    theirs = imported("gymnasium.spaces")
    if isinstance(space, theirs.Discrete):
        return spaces.discrete_choices(space, names)
    if isinstance(space, theirs.Text):
        return spaces.TextActions(space=space)
    raise ConfigError(
        f"actions of {space} have no text form: use an environment with a Discrete or a Text action space"
    )


def observation_writer(space: Any, bins: Sequence[Sequence[float]] | None, text: str | None) -> Callable[[Any], str]:
    """Return the function from observations to text. Raises `ConfigError`."""
    if bins is not None and text is not None:
        raise ConfigError("give bins or text, not both: each defines how observations are written")
    if text is not None:
        return cast(Callable[[Any], str], load_piece(text, "text"))
    if bins is not None:
        return spaces.digits(bins, space)
    if not spaces.readable(space):
        raise ConfigError(
            f"observations of {space} have no short text form: name a function that writes one, text=module:function"
        )
    return spaces.value_text
