"""What an environment says as tokens to append: the chat template's own words for new messages, after a sampled reply.

A conversation is never rendered again as it grows, because sampled tokens are trained as they were sampled. Instead a
made-up conversation with a placeholder for the reply is rendered together with the new messages, and what follows the
placeholder is the increment. That is only right for a template that appends; one that changes what it said before
(Qwen3 removes earlier thinking) is found by comparing, and refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf.errors import ModelError
from rlhf.models.chat import NONE, ChatTokenizer, prompt_ids, prompt_text
from rlhf.types import Message, Segment, TokenKind

REPLIER = "assistant"
QUESTION = Message(role="user", content="placeholder question")
REPLY = "placeholder reply"
REPLIES = (REPLY, f"<think>\nplaceholder thought\n</think>\n\n{REPLY}")
"""What the check lets the policy say: templates that rewrite mostly rewrite thinking."""


class Increments:
    """The increments of one tokenizer and its template, which ends a reply with the token `end`. `arguments` are what
    the template takes beside messages."""

    def __init__(self, tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE, *, end: int | None) -> None:
        self._tokenizer, self._arguments, self._end = tokenizer, arguments, end
        self._verdicts: dict[tuple[str, ...], str | None] = {}

    def after_reply(self, messages: Sequence[Message]) -> list[int]:
        """The tokens between a reply's stop token and the next reply: the rest of the turn (often a newline), the
        messages, and the header of the next reply. Raises `ModelError` for a template that does not append."""
        if refused := self.verdict([message.role for message in messages]):
            raise ModelError(refused)
        return self._encoded(self._tail(REPLY, messages))

    def verdict(self, roles: Sequence[str]) -> str | None:
        """Why messages of these roles cannot be appended; None when they can. Found once for each set of roles."""
        key = tuple(sorted(set(roles)))
        if key not in self._verdicts:
            self._verdicts[key] = self._refusal([Message(role=role, content="placeholder answer") for role in key])
        return self._verdicts[key]

    def _refusal(self, messages: Sequence[Message]) -> str | None:
        try:
            for reply in REPLIES:
                grown = self._rendered([QUESTION]) + reply + self._tail(reply, messages)
                whole = self._rendered([QUESTION, Message(role=REPLIER, content=reply), *messages])
                if grown != whole:
                    return _rewritten(grown, whole, [message.role for message in messages])
        except ModelError as error:
            return str(error)
        return None

    def _tail(self, reply: str, messages: Sequence[Message]) -> str:
        """What the template puts after the reply: its stop token first."""
        rendered = self._rendered([QUESTION, Message(role=REPLIER, content=reply), *messages])
        _, found, tail = rendered.partition(REPLY)
        if not found:
            raise ModelError("the chat template leaves out what the policy said before; use history: last_n")
        stop = self._stop()
        if not tail.startswith(stop):
            raise ModelError(
                f"the chat template goes on with {tail[:20]!r} behind a reply, but a reply ends at {stop!r}: after it "
                "nothing can be appended; use history: last_n"
            )
        return tail

    def _encoded(self, tail: str) -> list[int]:
        """The tokens after the stop token. It is encoded with the rest, so that the rest is read as what follows it."""
        token_ids = list(self._tokenizer.encode(tail, add_special_tokens=False))
        if token_ids[:1] != [self._end]:
            raise ModelError(f"the tokenizer does not read its own stop token {self._stop()!r} as one token")
        return token_ids[1:]

    def _stop(self) -> str:
        if self._end is None:
            raise ModelError("no token ends a reply: nothing can be appended after it; use history: last_n")
        return str(self._tokenizer.decode([self._end], skip_special_tokens=False))

    def _rendered(self, messages: Sequence[Message]) -> str:
        return prompt_text(self._tokenizer, messages, self._arguments)


def conversation(
    tokenizer: ChatTokenizer, messages: Sequence[Message], arguments: Mapping[str, Any] = NONE, *, end: int
) -> Segment:
    """A demonstration with several replies, rendered as an episode is: what comes before the first reply is PROMPT,
    every reply with the token `end` of its turn ACTION, what comes between them ENV; what comes after the last is left
    out.

    Raises `ModelError` for a template that does not append, and for a conversation in which nobody replies.
    """
    replies = [n for n, one in enumerate(messages) if one.role == REPLIER]
    if not replies:
        raise ModelError("a demonstration needs an assistant message to imitate")
    increments = Increments(tokenizer, arguments, end=end)
    pieces = [(TokenKind.PROMPT, prompt_ids(tokenizer, messages[: replies[0]], arguments))]
    for reply, following in zip(replies, [*replies[1:], None], strict=True):
        said = tokenizer.encode(messages[reply].content, add_special_tokens=False)
        pieces.append((TokenKind.ACTION, [*said, end]))
        if following is not None:
            pieces.append((TokenKind.ENV, increments.after_reply(messages[reply + 1 : following])))
    token_ids = np.array([token for _, tokens in pieces for token in tokens], np.int32)
    return Segment(
        token_ids=token_ids,
        kinds=np.repeat([kind for kind, _ in pieces], [len(tokens) for _, tokens in pieces]).astype(np.int8),
        logprobs=np.zeros(len(token_ids), np.float32),
        versions=np.full(len(token_ids), -1, np.int32),
    )


def _rewritten(grown: str, whole: str, roles: Sequence[str]) -> str:
    same = next((n for n, (one, other) in enumerate(zip(grown, whole, strict=False)) if one != other), len(grown))
    return (
        f"the chat template rewrites what was said before when a {' and '.join(roles)} message follows: "
        f"{grown[same : same + 30]!r} was sampled and becomes {whole[same : same + 30]!r}; tokens that were sampled "
        "are trained as they are, so use environment.history: last_n, or a template that appends"
    )
