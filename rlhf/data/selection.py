"""Select the rows of a dataset: prompts of the right length, and each held-out problem once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlhf.data.config import DatasetConfig
from rlhf.data.demonstrations import Demonstration
from rlhf.errors import DataError
from rlhf.types import Message, Task, Tool

T = TypeVar("T", Task, Demonstration)
PromptTokens = Callable[[Task], int]
"""Tokens of a task's prompt, as the model's chat template renders it."""
TEMPLATE_TOKENS, MESSAGE_TOKENS, JSON_TOKENS = 512, 32, 4
"""More tokens than chat templates write around a conversation, around each of its messages, and for each character of
its tools and tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Generic[T]):
    """The remaining tasks, and a message about omitted ones; empty if all remain."""

    tasks: list[T]
    message: str = ""

    def told(self, tell: Callable[[str], None]) -> list[T]:
        """Return the remaining tasks, and report the message if there is one."""
        if self.message:
            tell(self.message)
        return self.tasks


def doubtful(items: Iterable[T], tokens: int) -> Iterator[T]:
    """Iterate over the conversations that need a tokenizer to be judged: those that may have more than `tokens`, of
    which each has at least one byte, and the first with tools, tool calls, reasoning or several replies to imitate."""
    seen, around = set[tuple[bool, ...]](), min(TEMPLATE_TOKENS, tokens // 4)
    for item in items:
        tools: Sequence[Tool] = item.tools
        messages: Sequence[Message] = item.messages
        beside = [*tools, *(call for one in messages for call in one.tool_calls)]
        texts = [text for one in messages for text in (one.content, one.reasoning_content or "")]
        most = sum(len(text.encode()) for text in texts) + MESSAGE_TOKENS * len(messages)
        most += JSON_TOKENS * len(repr(beside)) * bool(beside) + around
        several = isinstance(item, Demonstration) and len(item.replies) > 1
        form = (bool(tools), len(beside) > len(tools), any(one.reasoning_content for one in messages), several)
        if most > tokens or (any(form) and form not in seen):
            yield item
        seen.add(form)


def check_room(tasks: Iterable[Task], context: int, prompt_tokens: PromptTokens, key: str) -> None:
    """Raise `DataError` for the first prompt that leaves no room for a reply in a context of `context` tokens."""
    for task in doubtful(tasks, context - 1):
        if (length := prompt_tokens(task)) >= context:
            raise DataError(
                f"{key}: {task.where or task.id}: the prompt has {length} tokens, which leaves no room for a reply "
                f"in the context of {context}; shorten it, or leave such rows out with {key}.max_prompt_tokens: "
                f"{context - 1}"
            )


def of_right_length(
    tasks: Sequence[T], config: DatasetConfig, prompt_tokens: Callable[[T], int], key: str
) -> Selection[T]:
    """Omit prompts that are shorter or longer than `config` allows. Raises `DataError` if no prompt remains.

    `key` is the dataset's key in the recipe. Without limits nothing is rendered.
    """
    least, most = config.min_prompt_tokens, config.max_prompt_tokens
    if least is None and most is None:
        return Selection(tasks=list(tasks))
    lengths = [prompt_tokens(task) for task in tasks]
    short = [length < (least or 0) for length in lengths]
    long = [most is not None and length > most for length in lengths]
    remaining = [task for task, *out in zip(tasks, short, long, strict=True) if not any(out)]
    message = _omitted(key, len(tasks), sum(short), sum(long), config)
    if not remaining:
        raise DataError(f"{message}; prompts have {min(lengths)} to {max(lengths)} tokens, so no prompt remains")
    return Selection(tasks=remaining, message=message if len(remaining) < len(tasks) else "")


def distinct(tasks: Sequence[Task], key: str) -> Selection[Task]:
    """Return every problem once: rows with the same prompt and answer are one problem. An environment's task has no
    prompt yet, and is another problem for every seed.

    Raises `DataError` for rows with the same prompt and different answers.
    """
    first: dict[object, Task] = {}
    for task in tasks:
        known = first.setdefault(task.messages or task.id, task)
        if known.answer != task.answer:
            raise DataError(
                f"{key}: {known.where or known.id} and {task.where or task.id} have the same prompt and different "
                f"answers ({known.answer!r} and {task.answer!r}); a problem is evaluated once, so drop one of them"
            )
    again = len(tasks) - len(first)
    message = f"{key}: {again} of {len(tasks)} rows repeat a problem; each is evaluated once" if again else ""
    return Selection(tasks=list(first.values()), message=message)


def _omitted(key: str, rows: int, short: int, long: int, config: DatasetConfig) -> str:
    reasons = [
        f"{count} {word} {limit} prompt tokens"
        for count, word, limit in (
            (short, "below", config.min_prompt_tokens),
            (long, "above", config.max_prompt_tokens),
        )
        if count
    ]
    return f"{key}: {short + long} of {rows} rows left out ({', '.join(reasons)})"
