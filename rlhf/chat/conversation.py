"""Joins conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlhf.types import Message


def joined(head: Sequence[Message], heard: Sequence[Message]) -> tuple[Message, ...]:
    """Join two conversations; consecutive user messages become one, because many chat templates reject two."""
    if not (head and heard and head[-1].role == heard[0].role == "user"):
        return (*head, *heard)
    images = head[-1].images + heard[0].images
    both = replace(head[-1], content=f"{head[-1].content}\n\n{heard[0].content}", images=images)
    return (*head[:-1], both, *heard[1:])
