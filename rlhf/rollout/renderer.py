"""Messages to tokens, once. What was sampled is never decoded and encoded again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import ModelError
from rlhf.models.chat import NONE, ChatTokenizer, arguments_with_tools, prompt_ids, prompt_text
from rlhf.models.increments import QUESTION, Increments
from rlhf.models.turn_end import turn_end
from rlhf.types import Message, Prompt, Task, Tool

REMEMBERED_OFFERS = 64


class ChatRenderer:
    """The model's own chat template, with the recipe's arguments for it and the tools that the policy may call.
    `declared_ends` are the ends that the model's `generation_config.json` names."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        arguments: Mapping[str, Any] = NONE,
        tools: Sequence[Tool] = (),
        declared_ends: Sequence[int] = (),
    ) -> None:
        self._tokenizer, self._arguments = tokenizer, arguments_with_tools(arguments, tools)
        self._end = turn_end(tokenizer, self._arguments, declared_ends)
        self._increments = Increments(tokenizer, self._arguments, end=self._end.token_id)
        self._tools, self._without_tools, self._offers = tools, arguments, dict[str, ChatRenderer]()
        self._declared_ends = declared_ends

    def offering(self, tools: Sequence[Tool]) -> ChatRenderer:
        """The same with other tools; kept, for what is known of its template is dear."""
        key = json.dumps([asdict(tool) for tool in tools])
        if key not in self._offers:
            if len(self._offers) >= REMEMBERED_OFFERS:
                self._offers.pop(next(iter(self._offers)))
            self._offers[key] = ChatRenderer(self._tokenizer, self._without_tools, tools, self._declared_ends)
        return self._offers[key]

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Where a turn ends; of these nobody reads anything in a reply."""
        return self._end.token_ids

    @property
    def told(self) -> tuple[str, ...]:
        """What a person should know of where replies end, and of tools that the template keeps to itself."""
        return (*self._end.told, *self._unsaid())

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The conversation so far, and the header of the assistant's reply."""
        return Prompt(token_ids=np.asarray(prompt_ids(self._tokenizer, messages, self._arguments), dtype=np.int32))

    def increment(self, messages: Sequence[Message], last: int) -> NDArray[np.int32]:
        """What follows a reply that stopped with the token `last`: the end of its turn, where it stopped at something
        else (`sampling.stop`), the messages, and the header of the next reply.

        Raises `ModelError` when the template does not only append.
        """
        increment = np.asarray(self._increments.after_reply(messages), dtype=np.int32)
        if last in self.stop_token_ids:
            return increment
        assert self._end.token_id is not None, "increments were refused without one"
        return np.concatenate([np.array([self._end.token_id], np.int32), increment])

    def refusal(self, roles: Sequence[str]) -> str | None:
        """Why messages of these roles cannot be appended to a conversation; None when they can."""
        return self._increments.verdict(roles)

    def prompt_tokens(self, task: Task) -> int:
        """Tokens of a task's prompt."""
        return len(prompt_ids(self._tokenizer, task.messages, self._arguments))

    def text(self, token_ids: NDArray[np.int32]) -> str:
        """What people and rewards read of sampled tokens: without special tokens, and without the end of the turn."""
        return self._decoded(self._without_ends(token_ids), without_special=True)

    def marked_text(self, token_ids: NDArray[np.int32]) -> str:
        """What tool calls are read from: with the special tokens that may mark them, without those that stop."""
        return self.whole_text(self._without_ends(token_ids))

    def whole_text(self, token_ids: NDArray[np.int32]) -> str:
        """Tokens as they are, special ones too."""
        return self._decoded(token_ids, without_special=False)

    def _decoded(self, token_ids: NDArray[np.int32], *, without_special: bool) -> str:
        """As it was sampled: many tokenizers are told to "clean up", which takes spaces before punctuation away."""
        ids = token_ids.tolist()
        text = self._tokenizer.decode(ids, skip_special_tokens=without_special, clean_up_tokenization_spaces=False)
        return str(text)

    def _unsaid(self) -> list[str]:
        try:
            prompt = prompt_text(self._tokenizer, [QUESTION], self._arguments)
        except ModelError:  # a template that wants more than a question
            return []
        unsaid = [tool.name for tool in self._tools if tool.name not in prompt]
        said = f"the chat template does not tell the policy of its tools {', '.join(unsaid)}; the environment has to"
        return [said] if unsaid else []

    def _without_ends(self, token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        return token_ids[~np.isin(token_ids, self.stop_token_ids)]
