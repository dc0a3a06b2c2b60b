"""How an episode grows in tokens: the prompt once, then each turn's increment. Sampled tokens are never re-encoded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf.chat.image_reader import NO_TOWER, NOISE_PIXELS, ImageReader, concatenated, noise_image, with_images
from rlhf.chat.increments import QUESTION, Increments
from rlhf.chat.templates import NONE, ChatTokenizer, arguments_with_tools, check_parts, prompt_ids, prompt_text
from rlhf.chat.thinking import HEADER_TOKENS, begun_thinking
from rlhf.chat.tool_calls import ParsedReply, ToolFormat, plain_text
from rlhf.chat.turn_end import frame_tokens, mark_text, turn_end
from rlhf.errors import ModelError
from rlhf.images import Image, ImageFeatures
from rlhf.types import Message, Prompt, Task, Tool

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED = 256
"""Cached texts of each kind: the samples of a group share a prompt, and environments repeat themselves."""
WHOLE_MARK = re.compile(r".*[\n>\]]", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyAsWritten:
    """A reply as the chat template writes it, without end tokens; `thinking`: its header opens the thinking."""

    text: str
    thinking: bool


class ChatRenderer:
    """The model's own chat template, with the recipe's arguments for it and the tools that the policy may call.
    `declared_ends` are the end tokens that the model's `generation_config.json` names. `read` parses tool calls."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        arguments: Mapping[str, Any] = NONE,
        tools: Sequence[Tool] = (),
        declared_ends: Sequence[int] = (),
        read: ToolFormat = plain_text,
        images: ImageReader | None = None,
    ) -> None:
        self.tokenizer, self._arguments, self.read = tokenizer, arguments_with_tools(arguments, tools), read
        self._end = turn_end(tokenizer, self._arguments, declared_ends)
        self._frame = frame_tokens(tokenizer, self._arguments).union(self._end.token_ids)
        self._increments = Increments(tokenizer, self._arguments, end=self._end.token_id)
        self._tools, self._without_tools, self._offers = tools, arguments, dict[str, ChatRenderer]()
        self._declared_ends, self._prompts = declared_ends, dict[str, Prompt]()
        self._appended, self._headers = dict[str, Prompt](), dict[tuple[int, ...], str]()
        self._images = images

    def offering(self, tools: Sequence[Tool]) -> ChatRenderer:
        """Return the same renderer with other tools; cached, because analysing a template is expensive."""
        arguments = (self.tokenizer, self._without_tools, tools, self._declared_ends, self.read, self._images)
        key = json.dumps([asdict(tool) for tool in tools])
        return _remembered(self._offers, key, lambda: ChatRenderer(*arguments))

    def reading(self, read: ToolFormat) -> ChatRenderer:
        ends = self._declared_ends
        return ChatRenderer(self.tokenizer, self._without_tools, self._tools, ends, read, self._images)

    def parsed(self, text: str, before: NDArray[np.int32]) -> ParsedReply:
        """Return the tool calls in the marked text of a reply to the tokens `before`; none without tools."""
        header = self.whole_text(before[-HEADER_TOKENS:])
        return self.read(text, self._tools, thinking=bool(begun_thinking(header))) if self._tools else ParsedReply()

    def rendered(self, asked: Sequence[Message], reply: Message) -> ReplyAsWritten | None:
        """Return a reply as the template writes it; None where the template refuses the conversation."""
        try:
            prompt = prompt_text(self.tokenizer, asked, self._arguments)
            whole = prompt_text(self.tokenizer, [*asked, reply], {**self._arguments, "add_generation_prompt": False})
        except ModelError:
            return None
        same, thinking = prompt, bool(begun_thinking(prompt))
        if not whole.startswith(prompt):  # the template writes another header before such a reply
            differ = next((n for n, (one, other) in enumerate(zip(prompt, whole, strict=False)) if one != other), 0)
            begun = WHOLE_MARK.match(whole[:differ])
            same, thinking = begun[0] if begun else "", False
        text = whole.removeprefix(same)
        for end in self.stop_token_ids:
            text = text.replace(mark_text(self.tokenizer, end), "")
        return ReplyAsWritten(text=text, thinking=thinking)

    @property
    def features_of(self) -> Callable[[Image], ImageFeatures] | None:
        """The function that processes an image for the model; None for a model that is shown none."""
        return self._images.features if self._images else None

    @property
    def noise(self) -> ImageFeatures | None:
        """An image that means nothing, for a model that is shown images."""
        return self._images.features(noise_image(NOISE_PIXELS)) if self._images else None

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Token ids that end a turn; they are stripped from a reply's text."""
        return self._end.token_ids

    @property
    def told(self) -> tuple[str, ...]:
        """Notes for the user about the tokens that end a reply, and tools that the template does not render."""
        try:
            prompt = prompt_text(self.tokenizer, [QUESTION], self._arguments)
        except ModelError:  # some templates need more than one user message
            return self._end.told
        unsaid = ", ".join(tool.name for tool in self._tools if tool.name not in prompt)
        note = f"the chat template does not show the policy its tools {unsaid}; the environment must describe them"
        return (*self._end.told, *([note] if unsaid else []))

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Return the conversation so far and the header of the assistant's reply: cached, so do not change it."""

        def rendered() -> Prompt:
            made = with_images(prompt_ids(self.tokenizer, messages, self._arguments), messages, self._images)
            made.token_ids.flags.writeable = False
            return made

        if any(message.images for message in messages):
            return rendered()
        return _remembered(self._prompts, repr(messages), rendered)

    def completion_prompt(self, given: str | Sequence[int]) -> tuple[NDArray[np.int32], str]:
        """Return the tokens and the text of a prompt without the chat template: a text, encoded with special tokens, or
        token ids. Raises `ModelError` for one without tokens, or with an id that is no token."""
        token_ids = self.tokenizer.encode(given) if isinstance(given, str) else given
        if not token_ids:
            raise ModelError("prompt has no tokens")
        if (largest := max(token_ids)) >= len(self.tokenizer):
            raise ModelError(f"prompt has the token id {largest}, and the tokenizer has {len(self.tokenizer)} tokens")
        tokens = np.array(token_ids, np.int32)
        return tokens, given if isinstance(given, str) else self.whole_text(tokens)

    def increment(self, messages: Sequence[Message], last: int) -> Prompt:
        """Return the tokens that follow a reply which stopped with the token `last`: the end of its turn if it stopped
        at something else (`sampling.stop`), the messages, and the header of the next reply. Raises `ModelError` when
        the template does more than append."""

        def appended() -> Prompt:
            return with_images(self._increments.after_reply(messages), messages, self._images)

        shows = any(message.images for message in messages)
        increment = appended() if shows else _remembered(self._appended, repr(messages), appended)
        if last in self.stop_token_ids:
            return increment
        assert self._end.token_id is not None, "increments were refused without one"
        return concatenated(Prompt(token_ids=np.array([self._end.token_id], np.int32)), increment)

    def refusal(self, roles: Sequence[str]) -> str | None:
        """Return why messages of these roles cannot be appended to a conversation; None when they can."""
        return self._increments.verdict(roles)

    def prompt_tokens(self, task: Task) -> int:
        """Return the length of a task's prompt. Raises `ModelError` if the template ignores a part of it."""
        check_parts(self.tokenizer, task.messages, task.tools)
        arguments = arguments_with_tools(self._arguments, task.tools)
        tokens = len(prompt_ids(self.tokenizer, task.messages, arguments))
        images = [image for message in task.messages for image in message.images]
        if images and self._images is None:
            raise ModelError(NO_TOWER)
        return tokens + sum(map(self._images.added_tokens, images)) if self._images else tokens

    def text(self, token_ids: NDArray[np.int32]) -> str:
        """Return the text for people and rewards, without the tokens that frame a turn."""
        return self._decoded(self._without(token_ids, self._frame))

    def marked_text(self, token_ids: NDArray[np.int32]) -> str:
        """Return the text that tool calls are parsed from: with special tokens, without the stop tokens."""
        return self.whole_text(self._without(token_ids, self.stop_token_ids))

    def whole_text(self, token_ids: NDArray[np.int32]) -> str:
        """Return the decoded text, special tokens included; cached if it is as short as a header."""
        if len(token_ids) > HEADER_TOKENS:
            return self._decoded(token_ids)
        key = tuple(token_ids.tolist())
        return _remembered(self._headers, key, lambda: self._decoded(token_ids))

    def _decoded(self, token_ids: NDArray[np.int32]) -> str:
        """Return the exact text of sampled tokens: many tokenizers would "clean up" spaces before punctuation."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @staticmethod
    def _without(token_ids: NDArray[np.int32], left_out: Collection[int]) -> NDArray[np.int32]:
        return token_ids[~np.isin(token_ids, list(left_out))]


def _remembered(known: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """Return the value for this key, made now unless cached; the oldest entry is dropped."""
    if key not in known:
        made = make()
        if len(known) >= REMEMBERED:
            known.pop(next(iter(known)))
        known[key] = made
    return known[key]
