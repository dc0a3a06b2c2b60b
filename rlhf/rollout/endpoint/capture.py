"""Capture an agent's requests as an episode. A *thread* is one growing context: a prompt, followed by replies and the
agent's messages after each. A request continues a thread or opens one; each becomes a segment. Which of them are the
task's is known at the end (`rlhf.rollout.endpoint.threads`). Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count

import numpy as np
from numpy.typing import NDArray

from rlhf.chat.image_reader import beginning, concatenated
from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.tool_calls import ParsedReply, with_ids
from rlhf.errors import ModelError
from rlhf.rollout.context import Context
from rlhf.rollout.endpoint.marks import AgentRequest, Mark, extended, message_marks
from rlhf.rollout.endpoint.threads import TRAINS_MAIN, AgentCall, Sorted, Thread, Trains, sorted_threads
from rlhf.rollout.history import reply_text
from rlhf.types import (
    MAIN_THREADS,
    Completion,
    EpisodeStatus,
    FinishReason,
    Message,
    Prompt,
    Segment,
    Task,
    Timings,
    Trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThreadPosition:
    """The first `length` tokens of a thread, up to an earlier request or to the end of an earlier reply."""

    thread: Thread
    length: int

    @property
    def prompt(self) -> Prompt:
        return beginning(self.thread.context.prompt, self.length)

    @property
    def free(self) -> bool:
        """Whether the position is the end of its thread and the thread is not busy."""
        return self.thread.taken is None and self.length == len(self.thread.context)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedRequest:
    """A request with its prompt, the `asked_at`-th event of its episode. `increment` is what its thread appends before
    the reply, None for a thread that this request opened; `mark` covers all its messages; `new` are those that were not
    in this episode before."""

    asked: AgentRequest
    asked_at: int
    mark: Mark
    thread: Thread
    increment: Prompt | None
    prompt: Prompt
    new: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replied:
    """The reply message for the agent, with its prompt tokens and its completion. `cut`: it ends at a stop text."""

    message: Message
    token_ids: NDArray[np.int32]
    completion: Completion
    cut: bool = False


class Capture:
    """One agent's episode in progress. Every request is either answered or dropped. `trains` says which replies are
    trained."""

    def __init__(self, renderer: ChatRenderer, trains: Trains = TRAINS_MAIN) -> None:
        self._renderer, self._trains = renderer, trains
        self._threads: list[Thread] = []  # in the order of their last reply
        self._asked: dict[Mark, ThreadPosition] = {}
        self._said: defaultdict[Mark, list[ThreadPosition]] = defaultdict(list)
        self._conversation: list[Message] = []
        self._events = count()
        self.replies, self._malformed, self._cut, self._constrained = 0, 0, 0, 0

    @property
    def first(self) -> tuple[Message, ...]:
        """The messages with which the main thread began."""
        return sorted_threads(self._threads).main[0].request.messages

    def goes_on(self, asked: AgentRequest, marks: Sequence[Mark]) -> bool:
        """Whether a request with these marks continues a thread that is not busy."""
        return (found := self._continued(asked, marks)) is not None and found[0].free

    def ask(self, asked: AgentRequest) -> TokenizedRequest:
        """Return the tokens of a request. Raises `ModelError` for a conversation that the chat template refuses,
        and a prompt that is not of the model's tokens."""
        if asked.prompt is not None:
            token_ids, text = self._renderer.completion_prompt(asked.prompt)
            prompt = Prompt(token_ids=token_ids)
            asked = replace(asked, prompt=tuple(token_ids.tolist()), messages=(Message(role="user", content=text),))
        marks = message_marks(asked)
        thread: Thread | None = None
        increment: Prompt | None = None
        if found := self._continued(asked, marks):
            place, tokens, new = found
            prompt = concatenated(place.prompt, tokens)
            if place.free:
                thread, increment = place.thread, tokens
        if thread is None and (before := self._asked.get(marks[-1])):
            prompt, new = before.prompt, ()
        elif found is None:
            new = asked.messages
            if asked.prompt is None:
                prompt = self._renderer.offering(asked.tools).prompt(asked.messages)
        question = TokenizedRequest(
            asked=asked,
            asked_at=next(self._events),
            mark=marks[-1],
            thread=thread or Thread(Context(prompt)),
            increment=increment,
            prompt=prompt,
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
            thread.context.append(question.increment)
            self._threads.remove(thread)
        self._asked.setdefault(question.mark, ThreadPosition(thread=thread, length=len(thread.context)))
        text, constrained = reply_text(self._renderer, thread.context, completion), bool(question.asked.structure)
        turn = None if constrained else sum(call.turn is not None for call in thread.calls)
        if constrained:
            # Drawn among the tokens that a grammar allowed: a ratio to the learner's whole distribution would be wrong.
            thread.context.append(Prompt(token_ids=completion.token_ids))
        else:
            thread.context.append_reply(completion)
        thread.taken = None
        self._threads.append(thread)
        message = self._message(question, completion)
        answered_at = next(self._events)
        thread.calls.append(
            AgentCall(
                request=question.asked,
                asked_at=question.asked_at,
                answered_at=answered_at,
                new=question.new,
                message=message,
                text=text,
                completion=completion,
                turn=turn,
            )
        )
        if completion.finish_reason is FinishReason.STOP and not cut:
            [mark] = extended(question.mark, [message])
            self._said[mark].append(ThreadPosition(thread=thread, length=len(thread.context)))
        self._conversation.extend((*question.new, message))
        self.replies, self._cut = self.replies + 1, self._cut + cut
        self._constrained += constrained
        return Replied(message=message, token_ids=question.prompt.token_ids, completion=completion, cut=cut)

    def trajectory(self, task: Task, reward: float | None, timings: Timings, *, ended: bool = True) -> Trajectory:
        """Return the episode, `ended` or given up. Requires at least one reply. The last reply of the main thread that
        can be trained receives the `reward`, and its segment is the last. Without a reward, an episode whose last main
        reply was cut off is truncated."""
        found = sorted_threads(self._threads)
        last = found.main[-1].completion
        heard = accumulate(len(call.new) + 1 for call in found.main)
        messages = {call: number - 1 for call, number in zip(found.main, heard, strict=True)}
        terminated = ended and (reward is not None or last.finish_reason is FinishReason.STOP)
        acted = [thread for thread in self._threads if any(call.turn is not None for call in thread.calls)]
        final = max(acted or self._threads, key=lambda thread: (found.kinds[thread] in MAIN_THREADS, _answered(thread)))
        if acted and terminated:
            final.context.end(reward)
        elif acted:
            final.context.cut_off()
        return Trajectory(
            task=task,
            segments=tuple(
                self._segment(thread, found, messages)
                for thread in sorted(self._threads, key=lambda thread: (thread is final, _answered(thread)))
            ),
            status=EpisodeStatus.TERMINATED if terminated else EpisodeStatus.TRUNCATED,
            response=found.main[-1].text,
            engine=last.engine,
            timings=timings,
            conversation=tuple(message for call in found.main for message in (*call.new, call.message)),
            malformed_calls=self._malformed,
            cut_replies=self._cut,
            constrained_replies=self._constrained,
        )

    def _segment(self, thread: Thread, found: Sorted, messages: Mapping[AgentCall, int]) -> Segment:
        untrained = frozenset(
            call.turn
            for call in thread.calls
            if call.turn is not None and not self._trains(found.kind_of(thread, call), call)
        )
        segment = thread.context.segment(found.kinds[thread], untrained)
        sampled = [call for call in thread.calls if call.turn is not None]
        turns = [replace(turn, message=messages.get(call)) for turn, call in zip(segment.turns, sampled, strict=True)]
        return replace(segment, turns=tuple(turns))

    def _continued(
        self, asked: AgentRequest, marks: Sequence[Mark]
    ) -> tuple[ThreadPosition, Prompt, tuple[Message, ...]] | None:
        """Return the longest known conversation ending in a reply that the request continues, preferably of a free
        thread, with the tokens to append and the new messages. None if none fits, or the template does not append."""
        for known in range(len(marks), 0, -1):
            if places := self._said.get(marks[known - 1]):
                new = asked.messages[known:]
                try:
                    place = next((place for place in places if place.free), places[0])
                    increment = self._renderer.offering(asked.tools).increment(new, int(place.prompt.token_ids[-1]))
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
            parsed = self._renderer.offering(asked.tools).parsed(marked, question.prompt.token_ids)
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


def _answered(thread: Thread) -> int:
    return thread.calls[-1].answered_at


def before_stop(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.index(one) for one in stop if one in text), default=len(text))]
