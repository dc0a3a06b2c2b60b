"""Capture an agent's requests as an episode: match each request to earlier ones; sampled tokens are never re-encoded.

A *thread* is one growing context: a prompt, followed by replies and the agent's messages after each. A request
continues a thread or opens a new one; every thread becomes a segment. Pure: this module neither waits nor calls an
engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import ModelError
from rlhf.rollout.context import Context
from rlhf.rollout.endpoint.marks import AgentRequest, Mark, extended, message_marks
from rlhf.rollout.history import Renderer
from rlhf.rollout.tool_calls import Spoken, ToolFormat
from rlhf.types import Completion, EpisodeStatus, FinishReason, Message, Task, Timings, Trajectory


@dataclass(eq=False)
class Thread:
    """A context, and the request that it is generating for; a busy thread cannot be continued by another request."""

    context: Context
    taken: TokenizedRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThreadPosition:
    """The first `length` tokens of a thread: the position of an earlier request, or the end of an earlier reply."""

    thread: Thread
    length: int

    @property
    def token_ids(self) -> NDArray[np.int32]:
        return self.thread.context.token_ids[: self.length]

    @property
    def free(self) -> bool:
        """Whether the position is the end of its thread and the thread is not busy."""
        return self.thread.taken is None and self.length == len(self.thread.context)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedRequest:
    """A request with its tokens. `heard` is what its thread appends before the reply, None where the thread was opened
    for this request; `mark` is the mark of all its messages; `new` are the messages that were not in this episode
    before."""

    asked: AgentRequest
    mark: Mark
    thread: Thread
    heard: NDArray[np.int32] | None
    token_ids: NDArray[np.int32]
    new: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replied:
    """The reply message for the agent, with its prompt tokens and its completion."""

    message: Message
    token_ids: NDArray[np.int32]
    completion: Completion


class Capture:
    """One agent's episode in progress. Every request is either answered or dropped."""

    def __init__(self, renderer: Renderer, read: ToolFormat) -> None:
        self._renderer, self._read = renderer, read
        self._threads: list[Thread] = []  # in the order of their last reply
        self._asked: dict[Mark, ThreadPosition] = {}
        self._said: defaultdict[Mark, list[ThreadPosition]] = defaultdict(list)
        self._conversation: list[Message] = []
        self._response, self._last, self._replies, self._malformed = "", FinishReason.STOP, 0, 0
        self._engine = ""
        self.first: tuple[Message, ...] = ()

    @property
    def replies(self) -> int:
        return self._replies

    def goes_on(self, asked: AgentRequest, marks: Sequence[Mark]) -> bool:
        """Whether a request with these marks continues a thread that is not busy."""
        return (found := self._continued(asked, marks)) is not None and found[0].free

    def ask(self, asked: AgentRequest) -> TokenizedRequest:
        """Return the tokens of a request. Raises `ModelError` for a conversation that the chat template refuses."""
        marks = message_marks(asked)
        found = self._continued(asked, marks)
        if found and found[0].free:
            place, heard, new = found
            grown = np.concatenate([place.token_ids, heard])
            place.thread.taken = self._question(asked, marks[-1], grown, new, place.thread, heard)
            return place.thread.taken
        if before := self._asked.get(marks[-1]):
            return self._question(asked, marks[-1], before.token_ids, ())
        if found:
            place, heard, new = found
            return self._question(asked, marks[-1], np.concatenate([place.token_ids, heard]), new)
        whole = self._renderer.offering(asked.tools).prompt(asked.messages).token_ids
        return self._question(asked, marks[-1], whole, asked.messages)

    def drop(self, question: TokenizedRequest) -> None:
        """Drop a request without a reply: its thread is unchanged. A request that was answered is not affected."""
        if question.thread.taken is question:
            question.thread.taken = None

    def answer(self, question: TokenizedRequest, completion: Completion) -> Replied:
        """Append the reply to its thread; returns it as the message that the agent reads."""
        thread = question.thread
        if question.heard is not None:
            thread.context.hear(question.heard)
            self._threads.remove(thread)
        self._asked.setdefault(question.mark, ThreadPosition(thread=thread, length=len(thread.context)))
        thread.context.say(completion)
        thread.taken = None
        self._threads.append(thread)
        message = self._told(question.asked, completion)
        if completion.finish_reason is FinishReason.STOP:
            [mark] = extended(question.mark, [message])
            self._said[mark].append(ThreadPosition(thread=thread, length=len(thread.context)))
        self.first = self.first or question.asked.messages
        self._conversation.extend((*question.new, message))
        self._response = self._renderer.text(completion.token_ids)
        self._last, self._engine = completion.finish_reason, completion.engine
        self._replies += 1
        return Replied(message=message, token_ids=question.token_ids, completion=completion)

    def trajectory(self, task: Task, reward: float | None, timings: Timings, *, ended: bool = True) -> Trajectory:
        """Return the episode, `ended` or given up. Requires at least one reply.

        The last reply is at the end of the last segment, and receives the `reward`. Without a reward, an episode whose
        last reply was cut off is truncated.
        """
        terminated = ended and (reward is not None or self._last is FinishReason.STOP)
        last = self._threads[-1].context
        if terminated:
            last.end(reward)
        else:
            last.cut_off()
        return Trajectory(
            task=task,
            segments=tuple(thread.context.segment() for thread in self._threads),
            status=EpisodeStatus.TERMINATED if terminated else EpisodeStatus.TRUNCATED,
            response=self._response,
            engine=self._engine,
            timings=timings,
            conversation=tuple(self._conversation),
            malformed_calls=self._malformed,
        )

    def _continued(
        self, asked: AgentRequest, marks: Sequence[Mark]
    ) -> tuple[ThreadPosition, NDArray[np.int32], tuple[Message, ...]] | None:
        """Return the longest known conversation ending in a reply that the request continues, with the tokens to append
        and the new messages. Threads that are not busy are preferred.

        None where no conversation fits, or where the chat template does more than append.
        """
        for known in range(len(marks), 0, -1):
            if places := self._said.get(marks[known - 1]):
                new = asked.messages[known:]
                try:
                    place = next((place for place in places if place.free), places[0])
                    heard = self._renderer.offering(asked.tools).increment(new, int(place.token_ids[-1]))
                except ModelError:
                    return None
                return place, heard, new
        return None

    def _question(
        self,
        asked: AgentRequest,
        mark: Mark,
        token_ids: NDArray[np.int32],
        new: tuple[Message, ...],
        thread: Thread | None = None,
        heard: NDArray[np.int32] | None = None,
    ) -> TokenizedRequest:
        opened = thread or Thread(Context(token_ids))
        return TokenizedRequest(asked=asked, mark=mark, thread=opened, heard=heard, token_ids=token_ids, new=new)

    def _told(self, asked: AgentRequest, completion: Completion) -> Message:
        """Return a reply as text or tool calls. Malformed calls are passed to the agent as text, and counted."""
        whole = completion.finish_reason is FinishReason.STOP
        text = self._renderer.marked_text(completion.token_ids)
        spoken = self._read(text) if asked.reads_calls and whole else Spoken()
        self._malformed += spoken.problem is not None
        if not spoken.calls:
            return Message(role="assistant", content=self._renderer.text(completion.token_ids))
        # The agent may store results under these ids, so each id is unique within an episode.
        calls = tuple(replace(call, id=f"call_{self._replies}_{n}") for n, call in enumerate(spoken.calls))
        return Message(role="assistant", content=spoken.beside, tool_calls=calls)
