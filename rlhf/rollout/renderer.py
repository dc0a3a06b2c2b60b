"""Messages to tokens, once. What was sampled is never decoded and encoded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf.types import Message, Prompt


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering needs; its own signatures depend on its arguments."""

    eos_token_id: int | None

    @property
    def apply_chat_template(self) -> Callable[..., Any]: ...
    @property
    def decode(self) -> Callable[..., Any]: ...


class ChatRenderer:
    """The model's own chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return () if self._tokenizer.eos_token_id is None else (self._tokenizer.eos_token_id,)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The conversation so far, and the header of the assistant's reply."""
        token_ids = self._tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            add_generation_prompt=True,
            return_dict=False,
        )
        return Prompt(token_ids=np.asarray(token_ids, dtype=np.int32))

    def text(self, token_ids: NDArray[np.int32]) -> str:
        """What people and rewards read of sampled tokens: without special tokens such as the end of the turn."""
        return str(self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))
