"""Encodes a demonstrated reply as the tokens that the policy would have sampled after the chat template's header, with
the text that the template writes around a reply: a space (Llama 2, Mistral), a channel (gpt-oss), an empty `<think>`
(Qwen 3). A sentencepiece tokenizer puts a space before a text only without a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from rlhf.chat.image_reader import ImageReader, concatenated, with_images
from rlhf.chat.templates import NONE, ChatTokenizer, prompt_ids, prompt_text, refuse_surrogates
from rlhf.chat.turn_end import ASKED_AND_ANSWERED, end_of_reply, mark_text, mark_tokens, with_reply
from rlhf.errors import ModelError
from rlhf.types import Message, Prompt, Segment, TokenKind

QUESTION, REPLY = ASKED_AND_ANSWERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The template's text around a reply: `header` is given, the policy samples `before` and `after`."""

    header: str
    before: str = ""
    after: str = ""


class ReplyEncoder:
    """Encodes demonstrated replies for one tokenizer and its template. Raises `ModelError` if no token ends one."""

    def __init__(self, tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE) -> None:
        self._tokenizer, self.end = tokenizer, end_of_reply(tokenizer, arguments)
        self._marks = [mark_text(tokenizer, mark) for mark in sorted(mark_tokens(tokenizer))]
        self.end_mark = mark_text(tokenizer, self.end)
        self.around = _around(tokenizer, arguments, self.end_mark)
        self._header_ids = self._encoded(self.around.header)

    def token_ids(self, response: str) -> list[int]:
        """Return the tokens of `response` as sampled, with the template's text around it, and the end of its turn."""
        header, before, after = self.around.header, self.around.before, self.around.after
        begun = next((mark for mark in self._marks if header.rstrip().endswith(mark)), None)
        text = response
        if begun is not None and response.startswith(begun):  # the header has it (DeepSeek R1: `<think>`, a newline)
            text = response.removeprefix(begun).removeprefix(header.rpartition(begun)[2])
        opening = next((mark for mark in self._marks if before.startswith(mark)), before)
        text = ("" if text.startswith(opening) else before) + text + ("" if text.endswith(after) else after)
        return self.rendered_ids(text)

    def rendered_ids(self, text: str) -> list[int]:
        """Return the tokens of a rendered reply and the end of its turn. Raises `ModelError` for half a character."""
        refuse_surrogates(text, "a reply")
        whole = self._encoded(self.around.header + text)
        given = len(self._header_ids)
        inside = whole[given:] if whole[:given] == self._header_ids else self._encoded(text)
        return [*inside, self.end]

    def following_ids(self, text: str) -> list[int]:
        """Return the tokens of a text that follows the end of a reply, encoded with that end as its context."""
        return self._encoded(self.end_mark + text)[1:]

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _around(tokenizer: ChatTokenizer, arguments: Mapping[str, Any], end: str) -> Around:
    """Return the template's text around a reply; it may refuse to write one after its header."""
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


def conversation(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    arguments: Mapping[str, Any] = NONE,
    *,
    replies: ReplyEncoder,
    imitated: Sequence[int] | None = None,
    images: ImageReader | None = None,
) -> Segment:
    """Return a conversation with the tokens of the chat template: before the first reply PROMPT, of each reply with its
    end of turn ACTION, and between replies ENV; what follows the last reply is left out. `imitated` are the places of
    the replies; by default all of the assistant's. Raises `ModelError` for a template that renders a reply otherwise
    than it would be sampled, and for a conversation without a reply."""
    places = [n for n, one in enumerate(messages) if one.role == "assistant"] if imitated is None else imitated
    if not places:
        raise ModelError("a demonstration needs an assistant message to imitate")
    advice = "write replies: last" if len(places) > 1 else "use a template that does"
    whole = prompt_text(tokenizer, messages[: places[-1] + 1], {**arguments, "add_generation_prompt": False})
    pieces, read, heard_before = list[tuple[TokenKind, Prompt]](), 0, 0
    for place in places:
        asked = prompt_text(tokenizer, messages[:place], arguments)
        reply, ended, _ = whole[len(asked) :].partition(replies.end_mark)
        if not whole.startswith(asked) or len(asked) < read or not (ended or place == places[-1]):
            raise ModelError(
                f"the chat template does not write message {place + 1} of a conversation, a reply, as it would be "
                f"sampled, so it cannot be imitated; {advice}"
            )
        if lost := _left_out(messages[place], reply):
            raise ModelError(f"the chat template leaves out or rewrites a reply's {lost}; {advice}")
        heard = replies.following_ids(asked[read:]) if pieces else prompt_ids(tokenizer, messages[:place], arguments)
        shown = with_images(heard, messages[heard_before:place], images)
        said = Prompt(token_ids=np.array(replies.rendered_ids(reply), np.int32))
        pieces += [(TokenKind.ENV if pieces else TokenKind.PROMPT, shown), (TokenKind.ACTION, said)]
        heard_before = place
        read = len(asked) + len(reply) + len(replies.end_mark)
    whole_prompt = reduce(concatenated, [tokens for _, tokens in pieces])
    length = len(whole_prompt.token_ids)
    return Segment(
        token_ids=whole_prompt.token_ids,
        kinds=np.repeat([kind for kind, _ in pieces], [len(one.token_ids) for _, one in pieces]).astype(np.int8),
        behaviour_logprobs=np.zeros(length, np.float32),
        versions=np.full(length, -1, np.int32),
        images=whole_prompt.images,
    )


def _left_out(message: Message, rendered: str) -> str:
    """Return the part of a reply that is not in its text, with its beginning; empty if all are."""
    parts = [
        ("content", message.content),
        ("reasoning_content", message.reasoning_content or ""),
        *(("tool_calls", call.name) for call in message.tool_calls),
    ]
    return next((f"{part}, {text[:40]!r}" for part, text in parts if text.strip() not in rendered), "")
