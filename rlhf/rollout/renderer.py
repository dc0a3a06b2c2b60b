"""Messages to tokens, once. What was sampled is never decoded and encoded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.models.chat import NONE, ChatTokenizer, prompt_ids
from rlhf.types import Message, Prompt, Task


class ChatRenderer:
    """The model's own chat template, with the recipe's arguments for it."""

    def __init__(self, tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE) -> None:
        self._tokenizer, self._arguments = tokenizer, arguments

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return () if self._tokenizer.eos_token_id is None else (self._tokenizer.eos_token_id,)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The conversation so far, and the header of the assistant's reply."""
        return Prompt(token_ids=np.asarray(prompt_ids(self._tokenizer, messages, self._arguments), dtype=np.int32))

    def prompt_tokens(self, task: Task) -> int:
        """Tokens of a task's prompt."""
        return len(prompt_ids(self._tokenizer, task.messages, self._arguments))

    def text(self, token_ids: NDArray[np.int32]) -> str:
        """What people and rewards read of sampled tokens: without special tokens such as the end of the turn."""
        return str(self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))
