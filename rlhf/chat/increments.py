"""Encode new messages as tokens to append after a sampled reply, by the chat template's own text. Sampled tokens are
trained as they are, so a made-up conversation is rendered, with a placeholder for the reply, and the text after it is
the increment. A template that does not only append (Qwen3 removes earlier thinking, Mistral moves the system message)
is detected by comparison and refused; white space around a reply is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from rlhf.chat.templates import NONE, ChatTokenizer, prompt_text
from rlhf.chat.turn_end import mark_text
from rlhf.errors import ModelError
from rlhf.types import Message

REPLIER = "assistant"
QUESTION = Message(role="user", content="placeholder question")
OPENINGS = ([QUESTION], [Message(role="system", content="placeholder rule"), QUESTION])
HEARD = "placeholder answer"
CALL_ID = "call00000"
"""An id in the form that Mistral's templates require of an answered call."""
REPLY = "placeholder reply"
REPLIES = (REPLY, f"<think>\nplaceholder thought\n</think>\n\n{REPLY}")
"""Replies used by the check; most templates that rewrite earlier text rewrite thinking."""


class Increments:
    """Computes increments for one tokenizer, its template and its `arguments`; the token `end` ends a reply."""

    def __init__(self, tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE, *, end: int | None) -> None:
        self._tokenizer, self._arguments, self._end = tokenizer, arguments, end
        self._verdicts: dict[tuple[str, ...], str | None] = {}

    def after_reply(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens between a reply's stop token and the next reply: the rest of the turn (often a newline),
        the messages, and the header of the next reply. Raises `ModelError` for a template that does not append."""
        if refused := self.verdict([message.role for message in messages]):
            raise ModelError(refused)
        whole = self._rendered([QUESTION, Message(role=REPLIER, content=REPLY), *messages])
        return self._encoded(self._tail(whole))

    def verdict(self, roles: Sequence[str]) -> str | None:
        """Why messages of these roles cannot be appended, or None if they can. Computed once per set of roles."""
        key = tuple(sorted(set(roles)))
        if key not in self._verdicts:
            self._verdicts[key] = self._refusal(key)
        return self._verdicts[key]

    def _refusal(self, roles: Sequence[str]) -> str | None:
        ids = {"tool": CALL_ID}
        messages = [Message(role=role, content=HEARD, tool_call_id=ids.get(role)) for role in roles]
        try:
            for opening, reply in product(self._openings(), REPLIES):
                prompt = self._rendered(opening)
                whole = self._rendered([*opening, Message(role=REPLIER, content=reply), *messages])
                tail = self._tail(whole)
                rendered = whole.removeprefix(prompt).removesuffix(tail)
                if not whole.startswith(prompt) or rendered.strip() != reply:
                    return _rewritten(prompt + reply + tail, whole, roles)
                if tail.count(HEARD) < len(messages):
                    return (
                        f"the chat template leaves out the text of {' and '.join(roles)} messages; use another template"
                    )
        except ModelError as error:
            return str(error)
        return None

    def _openings(self) -> Sequence[list[Message]]:
        """Return possible beginnings of a conversation: also with a system message, if the template accepts one."""
        try:
            self._rendered(OPENINGS[-1])
        except ModelError:
            return OPENINGS[:1]
        return OPENINGS

    def _tail(self, whole: str) -> str:
        """Return the template's text after the reply, beginning with the stop token."""
        _, found, behind = whole.partition(REPLY)
        if not found:
            raise ModelError("the chat template leaves out earlier replies; use environment.last_n")
        stop, tail = self._stop(), behind.lstrip()
        if not tail.startswith(stop):
            raise ModelError(
                f"the chat template continues with {tail[:20]!r} after a reply, but a reply ends at {stop!r}, so "
                "nothing can be appended; use environment.last_n"
            )
        return tail

    def _encoded(self, tail: str) -> list[int]:
        """Return the tokens after the stop token, which is encoded too, as the context of the following text."""
        token_ids = list(self._tokenizer.encode(tail, add_special_tokens=False))
        if token_ids[:1] != [self._end]:
            raise ModelError(f"the tokenizer does not encode its own stop token {self._stop()!r} as one token")
        return token_ids[1:]

    def _stop(self) -> str:
        if self._end is None:
            raise ModelError("no token ends a reply: nothing can be appended after it; use environment.last_n")
        return mark_text(self._tokenizer, self._end)

    def _rendered(self, messages: Sequence[Message]) -> str:
        return prompt_text(self._tokenizer, messages, self._arguments)


def _rewritten(grown: str, whole: str, roles: Sequence[str]) -> str:
    same = next((n for n, (one, other) in enumerate(zip(grown, whole, strict=False)) if one != other), len(grown))
    return (
        f"the chat template rewrites earlier text when a {' and '.join(roles)} message follows: "
        f"{grown[same : same + 30]!r} was sampled and becomes {whole[same : same + 30]!r}; tokens that were sampled "
        "are trained as they are, so use environment.last_n, or a template that appends"
    )
