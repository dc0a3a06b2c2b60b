"""An agent's requests as an episode: each is matched to what was said before, and no sampled token is read again.

A *thread* is one context that grows: a prompt, then replies with what the agent said after each. A request goes on
with a thread, or opens one more; every thread becomes a segment. Pure: nothing here waits, or asks an engine.
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

Ids = NDArray[np.int32]


@dataclass(eq=False)
class Thread:
    """A context, and the question to it that is under way: then nobody else goes on with it."""

    context: Context
    taken: TokenizedRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThreadPosition:
    """The first `length` tokens of a thread: where it was asked something, or where a reply of it ended."""

    thread: Thread
    length: int

    @property
    def token_ids(self) -> Ids:
        return self.thread.context.token_ids[: self.length]

    @property
    def free(self) -> bool:
        """Whether its thread ends here, and can go on."""
        return self.thread.taken is None and self.length == len(self.thread.context)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedRequest:
    """A request with its tokens. `heard` is what its thread hears before the reply, None where it was opened for it;
    `mark` is that of all its messages, and `new` are those that were not in this episode before."""

    asked: AgentRequest
    mark: Mark
    thread: Thread
    heard: Ids | None
    token_ids: Ids
    new: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replied:
    """What the agent is told, and the tokens behind it."""

    message: Message
    token_ids: Ids
    completion: Completion


class Capture:
    """One agent's episode, while it is played. A question is either answered or dropped."""

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
        """How many were given so far."""
        return self._replies

    def goes_on(self, asked: AgentRequest, marks: Sequence[Mark]) -> bool:
        """Whether a request, whose marks these are, continues a thread that is free."""
        return (found := self._continued(asked, marks)) is not None and found[0].free

    def ask(self, asked: AgentRequest) -> TokenizedRequest:
        """The tokens of a request. Raises `ModelError` for a conversation that the chat template refuses."""
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
        """Nothing came of it: its thread is as it was. Does nothing to a question that was answered."""
        if question.thread.taken is question:
            question.thread.taken = None

    def answer(self, question: TokenizedRequest, completion: Completion) -> Replied:
        """Keep the reply, and say it as the agent reads it."""
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
        """The episode as it came to its end, or was given up before. There must have been a reply.

        The last reply of all is at the end of the last segment, and is paid the `reward`. Without one an episode whose
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
    ) -> tuple[ThreadPosition, Ids, tuple[Message, ...]] | None:
        """The longest known conversation that ended in a reply, with what it hears now; one that is free before others.

        None where there is none, or where the chat template cannot only append.
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
        token_ids: Ids,
        new: tuple[Message, ...],
        thread: Thread | None = None,
        heard: Ids | None = None,
    ) -> TokenizedRequest:
        opened = thread or Thread(Context(token_ids))
        return TokenizedRequest(asked=asked, mark=mark, thread=opened, heard=heard, token_ids=token_ids, new=new)

    def _told(self, asked: AgentRequest, completion: Completion) -> Message:
        """A reply as text or tool calls. Calls that cannot be read are text to the agent, and counted."""
        whole = completion.finish_reason is FinishReason.STOP
        text = self._renderer.marked_text(completion.token_ids)
        spoken = self._read(text) if asked.reads_calls and whole else Spoken()
        self._malformed += spoken.problem is not None
        if not spoken.calls:
            return Message(role="assistant", content=self._renderer.text(completion.token_ids))
        # The agent may keep answers by these ids, so none comes twice in an episode.
        calls = tuple(replace(call, id=f"call_{self._replies}_{n}") for n, call in enumerate(spoken.calls))
        return Message(role="assistant", content=spoken.beside, tool_calls=calls)
