"""How much of an episode the policy sees: all of it in one context that grows, or its last turns in a context each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import ModelError
from rlhf.models.conversation import joined
from rlhf.rollout.context import Context
from rlhf.types import Message, Prompt, Segment, Tool


class Renderer(Protocol):
    """Messages to tokens, and sampled tokens to text. `increment` is what is appended after a reply that stopped with
    the token `last`; `offering` is the same with other tools that the policy may call."""

    def offering(self, tools: Sequence[Tool]) -> Renderer: ...
    def prompt(self, messages: Sequence[Message]) -> Prompt: ...
    def increment(self, messages: Sequence[Message], last: int) -> NDArray[np.int32]: ...
    def text(self, token_ids: NDArray[np.int32]) -> str: ...
    def marked_text(self, token_ids: NDArray[np.int32]) -> str: ...
    def whole_text(self, token_ids: NDArray[np.int32]) -> str: ...


class History(Protocol):
    """`context` is what the policy continues.

    `grow` goes on after a reply that stopped, with what was heard; it does nothing and says no when less than one of
    `max_tokens` would be left for the next reply. `conclude` adds what was heard last of an episode that was cut off,
    for a critic to value, where there is room for it.
    """

    @property
    def context(self) -> Context: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    def grow(self, reply: str, heard: Sequence[Message], max_tokens: int) -> bool: ...
    def conclude(self, heard: Sequence[Message], max_tokens: int) -> None: ...


def history_of(
    renderer: Renderer, task: Sequence[Message], first: Sequence[Message], last_turns: int | None
) -> History:
    """The beginning of an episode, with what is asked `first`: the policy sees all of it, its last turns, or with none
    of them what it hears, under the messages of the `task`."""
    if last_turns is None:
        return FullHistory(renderer, first)
    return LastTurns(renderer, task if last_turns == 0 else first, first, last_turns)


class FullHistory:
    """One context, and one segment: sampled tokens stay as they are, and what is heard is appended."""

    def __init__(self, renderer: Renderer, first: Sequence[Message]) -> None:
        self._renderer = renderer
        self.context = Context(renderer.prompt(first).token_ids)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (self.context.segment(),)

    def grow(self, reply: str, heard: Sequence[Message], max_tokens: int) -> bool:
        increment = self._renderer.increment(heard, self.context.last)
        if len(self.context) + len(increment) >= max_tokens:
            return False
        self.context.hear(increment)
        return True

    def conclude(self, heard: Sequence[Message], max_tokens: int) -> None:
        _append_if_it_fits(self._renderer, self.context, heard, max_tokens)


class LastTurns:
    """A context a turn: `head`, then the last `turns` replies with what was heard after each, as text. With none only
    what was heard last follows: all that counts of a game that shows its whole state.

    Every context is rendered whole by the template, so one that rewrites what was said before is welcome. Only the
    reply at its end is an ACTION there: tokens that were sampled are trained in the context they were sampled in.
    """

    def __init__(self, renderer: Renderer, head: Sequence[Message], first: Sequence[Message], turns: int) -> None:
        self._renderer, self._head, self._shown = renderer, tuple(head), turns
        self._turns: list[tuple[Message, ...]] = []
        self._done: list[Segment] = []
        self.context = Context(renderer.prompt(first).token_ids)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (*self._done, self.context.segment())

    def grow(self, reply: str, heard: Sequence[Message], max_tokens: int) -> bool:
        context = Context(self._renderer.prompt(self._read(reply, heard)).token_ids)
        if len(context) >= max_tokens:
            return False
        self._done.append(self.context.segment())
        self.context = context
        return True

    def conclude(self, heard: Sequence[Message], max_tokens: int) -> None:
        _append_if_it_fits(self._renderer, self.context, heard, max_tokens)

    def _read(self, reply: str, heard: Sequence[Message]) -> Sequence[Message]:
        """What the policy reads next."""
        if self._shown == 0:
            return joined(self._head, heard)
        self._turns.append((Message(role="assistant", content=reply), *heard))
        return [*self._head, *(message for turn in self._turns[-self._shown :] for message in turn)]


def _append_if_it_fits(renderer: Renderer, context: Context, heard: Sequence[Message], max_tokens: int) -> None:
    try:
        increment = renderer.increment(heard, context.last) if heard else np.zeros(0, np.int32)
    except ModelError:  # nothing is sampled after it: a template that cannot say it costs a critic some precision
        return
    if len(context) + len(increment) <= max_tokens:
        context.hear(increment)
