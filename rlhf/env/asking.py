"""The first messages of an episode: what the task says, then what the environment says, as one user would."""

from __future__ import annotations

from rlhf.models.conversation import joined
from rlhf.types import Message, Task


def asked(task: Task, text: str) -> tuple[Message, ...]:
    """The task's messages and `text`."""
    return joined(task.messages, (Message(role="user", content=text),))
