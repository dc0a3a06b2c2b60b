"""A demonstration as tokens: rendered like an episode, so that what is imitated is what will be sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf.errors import ModelError
from rlhf.types import Message, Segment, TokenKind


def demonstration(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], response: str) -> Segment:
    """The chat prompt as PROMPT, then the response and the end-of-turn token as ACTION."""
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token: a response could never end")
    prompt = tokenizer.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in messages],
        add_generation_prompt=True,
        return_dict=False,
    )
    reply = [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id]
    length = len(prompt) + len(reply)
    kinds = [TokenKind.PROMPT] * len(prompt) + [TokenKind.ACTION] * len(reply)
    return Segment(
        token_ids=np.array([*prompt, *reply], np.int32),
        kinds=np.array(kinds, np.int8),
        logprobs=np.zeros(length, np.float32),
        versions=np.full(length, -1, np.int32),
    )
