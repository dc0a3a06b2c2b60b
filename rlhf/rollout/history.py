"""How much of an episode the policy sees: the full history in one growing context, or the last turns in one context per
turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf.chat.conversation import joined
from rlhf.chat.thinking import HEADER_TOKENS, begun_thinking
from rlhf.chat.tool_calls import Spoken
from rlhf.errors import ModelError
from rlhf.rollout.context import Context
from rlhf.types import Completion, Message, Prompt, Segment, Tool


class Renderer(Protocol):
    """Messages to tokens, and sampled tokens to text. `increment` is what is appended after a reply that stopped with
    the token `last`; `offering` is the same renderer with other tools for the policy; `spoken` parses the tool calls in
    the marked text of a reply that followed the tokens `before`."""

    def offering(self, tools: Sequence[Tool]) -> Renderer: ...
    def prompt(self, messages: Sequence[Message]) -> Prompt: ...
    def increment(self, messages: Sequence[Message], last: int) -> NDArray[np.int32]: ...
    def text(self, token_ids: NDArray[np.int32]) -> str: ...
    def marked_text(self, token_ids: NDArray[np.int32]) -> str: ...
    def whole_text(self, token_ids: NDArray[np.int32]) -> str: ...
    def spoken(self, text: str, before: NDArray[np.int32]) -> Spoken: ...


def reply_text(renderer: Renderer, context: Context, completion: Completion) -> str:
    """Return a reply to the context as text. It begins with the `<think>` that the template itself wrote: it
    distinguishes a reply that never stops thinking from one that never began."""
    header = renderer.whole_text(context.token_ids[-HEADER_TOKENS:])
    return begun_thinking(header) + renderer.text(completion.token_ids)


class History(Protocol):
    """The part of an episode that the policy sees, as the `context` that it continues.

    `grow` continues after a reply that stopped, with the environment's messages. It changes nothing and returns False
    when less than one of `max_tokens` would remain for the next reply.
    """

    @property
    def context(self) -> Context: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    def grow(self, reply: str, messages: Sequence[Message], max_tokens: int) -> bool: ...


def history_of(
    renderer: Renderer, task: Sequence[Message], first: Sequence[Message], last_turns: int | None
) -> History:
    """Return the initial history of an episode whose first messages are `first`. The policy sees the full history; or
    `first` and its `last_turns` turns; or, with 0, the messages of the `task` and the newest messages."""
    if last_turns is None:
        return FullHistory(renderer, first)
    return LastTurns(renderer, task if last_turns == 0 else first, first, last_turns)


class FullHistory:
    """One context and one segment: sampled tokens are kept, and the environment's messages are appended."""

    def __init__(self, renderer: Renderer, first: Sequence[Message]) -> None:
        self._renderer = renderer
        self.context = Context(renderer.prompt(first).token_ids)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (self.context.segment(),)

    def grow(self, reply: str, messages: Sequence[Message], max_tokens: int) -> bool:
        increment = self._renderer.increment(messages, self.context.last)
        if len(self.context) + len(increment) >= max_tokens:
            return False
        self.context.hear(increment)
        return True


class LastTurns:
    """One context per turn: `head`, then the last `turns` replies with the environment's messages after each, as text.
    With 0 turns only the newest messages follow, which suffices for a game that shows its whole state.

    The template renders every context from the start, so templates that rewrite earlier turns are allowed. Only the
    reply at a context's end is an ACTION there: sampled tokens are trained in the context they were sampled in.
    """

    def __init__(self, renderer: Renderer, head: Sequence[Message], first: Sequence[Message], turns: int) -> None:
        self._renderer, self._head, self._shown = renderer, tuple(head), turns
        self._turns: list[tuple[Message, ...]] = []
        self._done: list[Segment] = []
        self.context = Context(renderer.prompt(first).token_ids)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (*self._done, self.context.segment())

    def grow(self, reply: str, messages: Sequence[Message], max_tokens: int) -> bool:
        context = Context(self._renderer.prompt(self._read(reply, messages)).token_ids)
        if len(context) >= max_tokens:
            return False
        self._done.append(self.context.segment())
        self.context = context
        return True

    def _read(self, reply: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages that the policy reads next."""
        if self._shown == 0:
            return joined(self._head, messages)
        self._turns.append((Message(role="assistant", content=reply), *messages))
        return [*self._head, *(message for turn in self._turns[-self._shown :] for message in turn)]


def conclude(renderer: Renderer, context: Context, messages: Sequence[Message], max_tokens: int) -> None:
    """Append the last messages of a truncated episode for a critic to value, if there is room."""
    try:
        increment = renderer.increment(messages, context.last) if messages else np.zeros(0, np.int32)
    except ModelError:  # nothing is sampled from them; only the critic is less precise
        return
    if len(context) + len(increment) <= max_tokens:
        context.hear(increment)
