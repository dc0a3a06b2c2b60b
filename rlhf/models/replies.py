"""Encodes a demonstrated reply as the tokens that the policy would have sampled after the header of the chat template.

A template may write text around a reply: a space before it (Llama 2, Mistral), a channel (gpt-oss), an empty `<think>`
(Qwen 3). The policy samples this text, so a demonstration includes it. Tokens also depend on context: a sentencepiece
tokenizer puts a space before a separate text, but not before a text that follows a header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf.errors import ModelError
from rlhf.models.chat import NONE, ChatTokenizer, prompt_text
from rlhf.models.turn_end import ASKED_AND_ANSWERED, end_of_reply, mark_text, mark_tokens, with_reply

QUESTION, REPLY = ASKED_AND_ANSWERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The template's text around a reply. `header` follows the question and is given; the policy samples `before` and
    `after`. `after` stands before the end of the turn."""

    header: str
    before: str = ""
    after: str = ""


class ReplyEncoder:
    """Encodes demonstrated replies for one tokenizer and its template; `arguments` are the template's arguments besides
    the messages. Raises `ModelError` if no token ends a reply."""

    def __init__(self, tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE) -> None:
        self._tokenizer, self.end = tokenizer, end_of_reply(tokenizer, arguments)
        self._marks = [mark_text(tokenizer, mark) for mark in sorted(mark_tokens(tokenizer))]
        self.around = _around(tokenizer, arguments, mark_text(tokenizer, self.end))
        self._header_ids = self._encoded(self.around.header)

    def token_ids(self, response: str, *, last: bool = True) -> list[int]:
        """Return the tokens of `response` as the policy would sample it, and the end of its turn. `last` says that the
        conversation ends with it: for a reply that is followed by messages, templates keep white space but no other
        text around it."""
        text = self._said(response, last)
        whole = self._encoded(self.around.header + text)
        given = len(self._header_ids)
        inside = whole[given:] if whole[:given] == self._header_ids else self._encoded(text)
        return [*inside, self.end]

    def _said(self, response: str, last: bool) -> str:
        """Return the response with the template's text around it; text that the response already contains is not added
        twice."""
        text = self._without_header(response)
        before, after = (one if last or one.isspace() else "" for one in (self.around.before, self.around.after))
        opening = next((mark for mark in self._marks if before.startswith(mark)), before)
        return ("" if text.startswith(opening) else before) + text + ("" if text.endswith(after) else after)

    def _without_header(self, response: str) -> str:
        """Return the response without an opening that the header already has (DeepSeek R1: `<think>` and a newline)."""
        header = self.around.header
        begun = next((mark for mark in self._marks if header.rstrip().endswith(mark)), None)
        if begun is None or not response.startswith(begun):
            return response
        return response.removeprefix(begun).removeprefix(header.rpartition(begun)[2])

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _around(tokenizer: ChatTokenizer, arguments: Mapping[str, Any], end: str) -> Around:
    """Return the template's text around a reply; `before` and `after` are empty if the template writes no reply after
    its header."""
    try:
        asked, answered = prompt_text(tokenizer, [QUESTION], arguments), with_reply(tokenizer, arguments)
    except ModelError:
        return Around(header="")
    header = asked.rpartition(QUESTION.content)[2]
    before, found, tail = answered.removeprefix(asked).partition(REPLY.content)
    if not (answered.startswith(asked) and found):
        return Around(header=header)
    after, ended, _ = tail.partition(end)
    return Around(header=header, before=before, after=after if ended else "")
