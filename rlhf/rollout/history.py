"""How much of an episode the policy sees: all, in one growing context, or the last turns in one context per turn."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.chat.conversation import joined
from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.thinking import HEADER_TOKENS, begun_thinking
from rlhf.errors import ModelError
from rlhf.rollout.context import Context
from rlhf.types import Completion, Message, Segment


def reply_text(renderer: ChatRenderer, context: Context, completion: Completion) -> str:
    """Return a reply to the context as text. It begins with the `<think>` that the template itself wrote: it
    distinguishes a reply that never stops thinking from one that never began."""
    header = renderer.whole_text(context.token_ids[-HEADER_TOKENS:])
    return begun_thinking(header) + renderer.text(completion.token_ids)


def history_of(
    renderer: ChatRenderer, task: Sequence[Message], first: Sequence[Message], last_turns: int | None
) -> History:
    """Return the initial history of an episode whose first messages are `first`. The policy sees the full history; or
    `first` and its `last_turns` turns; or, with 0, the messages of the `task` and the newest messages."""
    if last_turns is None:
        return FullHistory(renderer, first)
    return LastTurns(renderer, task if last_turns == 0 else first, first, last_turns)


class FullHistory:
    """One context and one segment: sampled tokens are kept, and the environment's messages are appended."""

    def __init__(self, renderer: ChatRenderer, first: Sequence[Message]) -> None:
        self._renderer = renderer
        self.context = Context(renderer.prompt(first))

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (self.context.segment(),)

    def grow(self, reply: str, messages: Sequence[Message], max_tokens: int) -> bool:
        increment = self._renderer.increment(messages, self.context.last)
        if len(self.context) + len(increment.token_ids) >= max_tokens:
            return False
        self.context.append(increment)
        return True


class LastTurns:
    """One context per turn, rendered from the start: `head`, then the last `turns` replies with the environment's
    messages after each, as text; with 0 turns only the newest messages. Only the reply at a context's end is an ACTION
    there: sampled tokens are trained in the context they were sampled in."""

    def __init__(self, renderer: ChatRenderer, head: Sequence[Message], first: Sequence[Message], turns: int) -> None:
        self._renderer, self._head, self._shown = renderer, tuple(head), turns
        self._turns: list[tuple[Message, ...]] = []
        self._done: list[Segment] = []
        self.context = Context(renderer.prompt(first))

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (*self._done, self.context.segment())

    def grow(self, reply: str, messages: Sequence[Message], max_tokens: int) -> bool:
        context = Context(self._renderer.prompt(self._read(reply, messages)))
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


History = FullHistory | LastTurns
"""The part of an episode that the policy sees, as the `context` that it continues. `grow` continues after a reply that
stopped; it changes nothing and returns False where less than one of `max_tokens` would remain for the next."""


def conclude(renderer: ChatRenderer, context: Context, messages: Sequence[Message], max_tokens: int) -> None:
    """Append the last messages of a truncated episode for a critic to value, if there is room."""
    try:
        increment = renderer.increment(messages, context.last) if messages else None
    except ModelError:  # nothing is sampled from them; only the critic is less precise
        return
    if increment and len(context) + len(increment.token_ids) <= max_tokens:
        context.append(increment)
