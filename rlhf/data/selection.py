"""Select the rows of a dataset: prompts of the right length, and each held-out problem once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rlhf.data.config import DatasetConfig
from rlhf.data.demonstrations import Demonstration
from rlhf.errors import DataError
from rlhf.types import Message, Task, Tool

T = TypeVar("T", Task, Demonstration)
PromptTokens = Callable[[Task], int]
"""Tokens of a task's prompt, as the model's chat template renders it."""
TEMPLATE_TOKENS, MESSAGE_TOKENS, JSON_TOKENS = 512, 32, 4
"""More tokens than templates write around a conversation, around each message, and for a character of tools."""


def doubtful(items: Iterable[T], tokens: int) -> Iterator[T]:
    """Iterate over the conversations that need a tokenizer to be judged: those that may have more than `tokens`, of
    which each has at least one byte, those with images, and the first with tools, tool calls, reasoning or several
    replies to imitate."""
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
        if most > tokens or any(one.images for one in messages) or (any(form) and form not in seen):
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
    tasks: Sequence[T],
    config: DatasetConfig,
    prompt_tokens: Callable[[T], int],
    key: str,
    tell: Callable[[str], None],
) -> list[T]:
    """Return the tasks whose prompts are as long as `config` allows, and report the others. Raises `DataError` if none
    remains. `key` is the dataset's key in the recipe. Without limits nothing is rendered."""
    least, most = config.min_prompt_tokens, config.max_prompt_tokens
    if least is None and most is None:
        return list(tasks)
    lengths = [prompt_tokens(task) for task in tasks]
    short = [length < (least or 0) for length in lengths]
    long = [most is not None and length > most for length in lengths]
    remaining = [task for task, *out in zip(tasks, short, long, strict=True) if not any(out)]
    counts = ((sum(short), "below", least), (sum(long), "above", most))
    reasons = ", ".join(f"{count} {word} {limit} prompt tokens" for count, word, limit in counts if count)
    message = f"{key}: {sum(short) + sum(long)} of {len(tasks)} rows left out ({reasons})"
    if not remaining:
        raise DataError(f"{message}; prompts have {min(lengths)} to {max(lengths)} tokens, so no prompt remains")
    if reasons:
        tell(message)
    return remaining


def distinct(tasks: Sequence[Task], key: str, tell: Callable[[str], None]) -> list[Task]:
    """Return every problem once, and report repeated rows: those with the same prompt and answer, or for an environment
    the same id. Raises `DataError` for rows with the same prompt and different answers."""
    first: dict[object, Task] = {}
    for task in tasks:
        known = first.setdefault(task.messages or task.id, task)
        if known.answer != task.answer:
            raise DataError(
                f"{key}: {known.where or known.id} and {task.where or task.id} have the same prompt and different "
                f"answers ({known.answer!r} and {task.answer!r}); a problem is evaluated once, so drop one of them"
            )
    if again := len(tasks) - len(first):
        tell(f"{key}: {again} of {len(tasks)} rows repeat a problem; each is evaluated once")
    return list(first.values())
