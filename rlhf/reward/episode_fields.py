"""What a reward function asks to know of an episode, as plain data. `rlhf.reward.conventions` says what there is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from rlhf.types import EpisodeStatus, Message, Trajectory


def asked_fields(episode: Trajectory, group: Sequence[Trajectory], wants: Collection[str]) -> dict[str, Any]:
    """Return the fields `wants` of one episode of a group."""
    return {name: FIELDS[name](episode, group) for name in wants}


def plain_messages(episode: Trajectory) -> list[dict[str, Any]]:
    """Return the messages of an episode; without an environment these are the task's and the reply."""
    reply = Message(role="assistant", content=episode.response)
    return [plain(message) for message in episode.conversation or (*episode.task.messages, reply)]


def plain(message: Message) -> dict[str, Any]:
    """Return a message in OpenAI's form."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.tool_calls
        ]
    return found | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})


FIELDS: dict[str, Callable[[Trajectory, Sequence[Trajectory]], Any]] = {
    "answer": lambda episode, group: episode.task.answer,
    "prompt": lambda episode, group: [plain(message) for message in episode.task.messages],
    "messages": lambda episode, group: plain_messages(episode),
    "completion_ids": lambda episode, group: [
        token for segment in episode.segments for token in segment.token_ids[segment.action_mask].tolist()
    ],
    "truncated": lambda episode, group: episode.status is EpisodeStatus.TRUNCATED,
    "turns": lambda episode, group: sum(len(segment.turns) for segment in episode.segments) or 1,
    "role": lambda episode, group: episode.role,
    "env_info": lambda episode, group: list(episode.env_info),
    "state": lambda episode, group: dict(episode.env_info[-1]) if episode.env_info else {},
    "reward_parts": lambda episode, group: dict(episode.reward_parts),
    "group": lambda episode, group: [one.response for one in group if one.role == episode.role],
}
