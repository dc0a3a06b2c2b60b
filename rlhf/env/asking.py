"""The first messages of an episode: what the task says, then what the environment says, as one user would."""

from __future__ import annotations

from dataclasses import replace

from rlhf.types import Message, Task


def asked(task: Task, text: str) -> tuple[Message, ...]:
    """The task's messages and `text`. Two user messages in a row become one: many chat templates refuse two."""
    said = Message(role="user", content=text)
    if not task.messages or task.messages[-1].role != "user":
        return (*task.messages, said)
    last = task.messages[-1]
    return (*task.messages[:-1], replace(last, content=f"{last.content}\n\n{text}"))
