"""First messages of an episode: the task's messages, then the environment's text, as one user would write them."""

from __future__ import annotations

from rlhf.models.conversation import joined
from rlhf.types import Message, Task


def asked(task: Task, text: str) -> tuple[Message, ...]:
    """The task's messages and `text`."""
    return joined(task.messages, (Message(role="user", content=text),))
