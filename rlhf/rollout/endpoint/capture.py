"""Capture an agent's requests as an episode. A *thread* is one growing context: a prompt, followed by replies and the
agent's messages after each. A request continues a thread or opens one; each becomes a segment. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.tool_calls import ParsedReply, with_ids
from rlhf.errors import ModelError
from rlhf.rollout.context import Context
from rlhf.rollout.endpoint.marks import AgentRequest, Mark, extended, message_marks
from rlhf.rollout.history import reply_text
from rlhf.types import Completion, EpisodeStatus, FinishReason, Message, Task, Timings, Trajectory


@dataclass(eq=False)
class Thread:
    """A context, whether it has a reply to train, and the request that it is generating for; a busy thread cannot be
    continued by another request."""

    context: Context
    acted: bool = False
    taken: TokenizedRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThreadPosition:
    """The first `length` tokens of a thread, up to an earlier request or to the end of an earlier reply."""

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
    """A request with its tokens. `increment` is what its thread appends before the reply, None for a thread that this
    request opened; `mark` covers all its messages; `new` are those that were not in this episode before."""

    asked: AgentRequest
    mark: Mark
    thread: Thread
    increment: NDArray[np.int32] | None
    token_ids: NDArray[np.int32]
    new: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replied:
    """The reply message for the agent, with its prompt tokens and its completion. `cut`: it ends at a stop text."""

    message: Message
    token_ids: NDArray[np.int32]
    completion: Completion
    cut: bool = False


class Capture:
    """One agent's episode in progress. Every request is either answered or dropped."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._threads: list[Thread] = []  # in the order of their last reply
        self._asked: dict[Mark, ThreadPosition] = {}
        self._said: defaultdict[Mark, list[ThreadPosition]] = defaultdict(list)
        self._conversation: list[Message] = []
        self._response, self._engine, self._last = "", "", FinishReason.STOP
        self.replies, self._malformed, self._cut, self._constrained = 0, 0, 0, 0
        self.first: tuple[Message, ...] = ()

    def goes_on(self, asked: AgentRequest, marks: Sequence[Mark]) -> bool:
        """Whether a request with these marks continues a thread that is not busy."""
        return (found := self._continued(asked, marks)) is not None and found[0].free

    def ask(self, asked: AgentRequest) -> TokenizedRequest:
        """Return the tokens of a request. Raises `ModelError` for a conversation that the chat template refuses."""
        marks = message_marks(asked)
        thread: Thread | None = None
        increment: NDArray[np.int32] | None = None
        if found := self._continued(asked, marks):
            place, tokens, new = found
            token_ids = np.concatenate([place.token_ids, tokens])
            if place.free:
                thread, increment = place.thread, tokens
        if thread is None and (before := self._asked.get(marks[-1])):
            token_ids, new = before.token_ids, ()
        elif found is None:
            token_ids, new = self._renderer.offering(asked.tools).prompt(asked.messages).token_ids, asked.messages
        question = TokenizedRequest(
            asked=asked,
            mark=marks[-1],
            thread=thread or Thread(Context(token_ids)),
            increment=increment,
            token_ids=token_ids,
            new=new,
        )
        if thread:
            thread.taken = question
        return question

    def drop(self, question: TokenizedRequest) -> None:
        """Drop a request without a reply: its thread is unchanged. A request that was answered is not affected."""
        if question.thread.taken is question:
            question.thread.taken = None

    def answer(self, question: TokenizedRequest, completion: Completion) -> Replied:
        """Append the reply, up to a stop text of the request, to its thread; returns it as a message."""
        stopped = self._stopped(completion, question.asked.stop)
        completion, cut = stopped or completion, stopped is not None
        thread = question.thread
        if question.increment is not None:
            thread.context.append_tokens(question.increment)
            self._threads.remove(thread)
        self._asked.setdefault(question.mark, ThreadPosition(thread=thread, length=len(thread.context)))
        self._response = reply_text(self._renderer, thread.context, completion)
        if question.asked.structure:
            # Drawn among the tokens that a grammar allowed: a ratio to the learner's whole distribution would be wrong.
            thread.context.append_tokens(completion.token_ids)
        else:
            thread.context.append_reply(completion)
            thread.acted = True
        thread.taken = None
        self._threads.append(thread)
        message = self._message(question, completion)
        if completion.finish_reason is FinishReason.STOP and not cut:
            [mark] = extended(question.mark, [message])
            self._said[mark].append(ThreadPosition(thread=thread, length=len(thread.context)))
        self.first = self.first or question.asked.messages
        self._conversation.extend((*question.new, message))
        self._last, self._engine = completion.finish_reason, completion.engine
        self.replies, self._cut = self.replies + 1, self._cut + cut
        self._constrained += bool(question.asked.structure)
        return Replied(message=message, token_ids=question.token_ids, completion=completion, cut=cut)

    def trajectory(self, task: Task, reward: float | None, timings: Timings, *, ended: bool = True) -> Trajectory:
        """Return the episode, `ended` or given up. Requires at least one reply. The last reply that can be trained
        receives the `reward`. Without one, an episode whose last reply was cut off is truncated."""
        terminated = ended and (reward is not None or self._last is FinishReason.STOP)
        acted = [thread.context for thread in self._threads if thread.acted]
        if acted and terminated:
            acted[-1].end(reward)
        elif acted:
            acted[-1].cut_off()
        return Trajectory(
            task=task,
            segments=tuple(thread.context.segment() for thread in self._threads),
            status=EpisodeStatus.TERMINATED if terminated else EpisodeStatus.TRUNCATED,
            response=self._response,
            engine=self._engine,
            timings=timings,
            conversation=tuple(self._conversation),
            malformed_calls=self._malformed,
            cut_replies=self._cut,
            constrained_replies=self._constrained,
        )

    def _continued(
        self, asked: AgentRequest, marks: Sequence[Mark]
    ) -> tuple[ThreadPosition, NDArray[np.int32], tuple[Message, ...]] | None:
        """Return the longest known conversation ending in a reply that the request continues, preferably of a free
        thread, with the tokens to append and the new messages. None if none fits, or the template does not append."""
        for known in range(len(marks), 0, -1):
            if places := self._said.get(marks[known - 1]):
                new = asked.messages[known:]
                try:
                    place = next((place for place in places if place.free), places[0])
                    increment = self._renderer.offering(asked.tools).increment(new, int(place.token_ids[-1]))
                except ModelError:
                    return None
                return place, increment, new
        return None

    def _message(self, question: TokenizedRequest, completion: Completion) -> Message:
        """Return a reply as text or tool calls. Malformed calls are passed to the agent as text, and counted."""
        asked, whole = question.asked, completion.finish_reason is FinishReason.STOP
        text = before_stop(self._renderer.text(completion.token_ids), asked.stop)
        parsed = ParsedReply()
        if asked.reads_calls and whole:
            marked = before_stop(self._renderer.marked_text(completion.token_ids), asked.stop)
            parsed = self._renderer.offering(asked.tools).parsed(marked, question.token_ids)
        self._malformed += parsed.problem is not None
        if not parsed.calls:
            return Message(role="assistant", content=parsed.beside or text)
        # The agent may store results under these ids, so each id is unique within an episode.
        calls = with_ids(parsed.calls, [*self._conversation, *asked.messages])
        return Message(role="assistant", content=parsed.beside, tool_calls=calls)

    def _stopped(self, completion: Completion, stop: Sequence[str]) -> Completion | None:
        """Return the completion up to the token in which a stop text ends; None if it contains none."""

        def says_one(length: int) -> bool:
            text = self._renderer.text(completion.token_ids[:length])
            return any(one in text for one in stop)

        every = len(completion.token_ids)
        if not says_one(every):
            return None
        length = bisect_left(range(every), True, lo=1, key=says_one)
        routing = completion.routing
        return replace(
            completion,
            token_ids=completion.token_ids[:length],
            behaviour_logprobs=completion.behaviour_logprobs[:length],
            versions=completion.versions[:length],
            finish_reason=FinishReason.STOP,
            routing=None if routing is None else routing[: len(routing) - (every - length)],
        )


def before_stop(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.index(one) for one in stop if one in text), default=len(text))]
