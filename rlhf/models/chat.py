"""A demonstration as tokens: rendered like an episode, so that what is imitated is what will be sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlhf.errors import ModelError
from rlhf.types import Message, Segment, TokenKind

NONE: Mapping[str, Any] = {}


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering needs; its own signatures depend on its arguments."""

    eos_token_id: int | None

    @property
    def apply_chat_template(self) -> Callable[..., Any]: ...
    @property
    def encode(self) -> Callable[..., Any]: ...
    @property
    def decode(self) -> Callable[..., Any]: ...


def prompt_ids(tokenizer: ChatTokenizer, messages: Sequence[Message], arguments: Mapping[str, Any] = NONE) -> list[int]:
    """The conversation so far and the header of the assistant's reply, by the model's own chat template.

    `arguments` are what the template takes beside the messages (`enable_thinking: false`).
    """
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    token_ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False, **arguments)
    return list(token_ids)


def demonstration(
    tokenizer: ChatTokenizer, messages: Sequence[Message], response: str, arguments: Mapping[str, Any] = NONE
) -> Segment:
    """The chat prompt as PROMPT, then the response and the end-of-turn token as ACTION."""
    return _answered(tokenizer, prompt_ids(tokenizer, messages, arguments), response)


def comparison(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    chosen: str,
    rejected: str,
    arguments: Mapping[str, Any] = NONE,
) -> tuple[Segment, Segment]:
    """The demonstrations of two responses to one prompt, which is rendered once."""
    prompt = prompt_ids(tokenizer, messages, arguments)
    return _answered(tokenizer, prompt, chosen), _answered(tokenizer, prompt, rejected)


def _answered(tokenizer: ChatTokenizer, prompt: Sequence[int], response: str) -> Segment:
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token: a response could never end")
    reply = [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id]
    length = len(prompt) + len(reply)
    kinds = [TokenKind.PROMPT] * len(prompt) + [TokenKind.ACTION] * len(reply)
    return Segment(
        token_ids=np.array([*prompt, *reply], np.int32),
        kinds=np.array(kinds, np.int8),
        logprobs=np.zeros(length, np.float32),
        versions=np.full(length, -1, np.int32),
    )
