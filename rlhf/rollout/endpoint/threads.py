"""Which of an agent's contexts are its main conversation, and which are side calls: known when the episode ends. Pure.

An agent asks the policy for more than its task: for titles, summaries, memories, and for subagents. Its contexts
(*threads*) belong together where they have the same system prompt and tools, or where one continues the other's
messages; of these lines of conversation, one is the main one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise, takewhile
from typing import get_args

from rlhf.chat.thinking import after_thinking
from rlhf.config import load_piece
from rlhf.errors import EnvironmentFailed, Raised, catch, logged_error
from rlhf.rollout.context import Context
from rlhf.rollout.endpoint.marks import AgentRequest, said
from rlhf.types import MAIN_THREADS, Completion, Message, ThreadKind

SUMMARY_CHARACTERS = 16
"""A shorter reply may be in a later message by chance."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentCall:
    """One answered request: when it was `asked_at` and `answered_at`, counted over the episode; the messages that are
    `new` in it; the reply as message, as `text`, and as it was sampled. `turn`: its number among the turns of its
    thread; None where the reply was held to a grammar."""

    request: AgentRequest
    asked_at: int
    answered_at: int
    new: tuple[Message, ...]
    message: Message
    text: str
    completion: Completion
    turn: int | None


@dataclass(eq=False)
class Thread:
    """A context with its answered calls, and the request that it is generating for; a taken thread cannot be continued
    by another request."""

    context: Context
    calls: list[AgentCall] = field(default_factory=list)
    taken: object | None = None


Trains = Callable[[ThreadKind, AgentCall], bool]
"""Whether a reply is trained, by what its call is to the episode."""


TRAINED: dict[str, Collection[ThreadKind]] = {
    "main": (*MAIN_THREADS, "summary"),
    "main_without_summaries": MAIN_THREADS,
    "all": get_args(ThreadKind),
}
"""The settings of `agent.train`, beside a function, and the calls that each trains."""


def trains_of(setting: str) -> Trains:
    """Return what a setting trains. Raises `ConfigError` for a function that cannot be loaded. One that fails raises
    `EnvironmentFailed`."""
    if kinds := TRAINED.get(setting):
        return lambda kind, call: kind in kinds
    function = load_piece(setting, "agent.train")

    def decided(kind: ThreadKind, call: AgentCall) -> bool:
        answer = catch(lambda: function(kind, call))
        if isinstance(answer, Raised):
            raise EnvironmentFailed("agent.train", "raised", logged_error(answer.error)) from answer.error
        return bool(answer)

    return decided


TRAINS_MAIN = trains_of("main")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sorted:
    """The threads of an episode by what they are to it. `main` are the calls of the main line in the order of their
    replies; calls for summaries are `summaries`, also those within another thread."""

    kinds: dict[Thread, ThreadKind]
    main: tuple[AgentCall, ...]
    summaries: frozenset[AgentCall]

    def kind_of(self, thread: Thread, call: AgentCall) -> ThreadKind:
        return "summary" if call in self.summaries else self.kinds[thread]


def sorted_threads(threads: Sequence[Thread]) -> Sorted:
    """Sort threads, each with a call, by what they are to the episode."""
    lines = _lines(sorted(threads, key=lambda thread: thread.calls[0].asked_at))
    main = _main_line(lines)
    kinds: dict[Thread, ThreadKind] = dict.fromkeys(main.threads, "main")
    summaries: set[AgentCall] = set()
    for call in (call for line in lines for call in line.calls):
        if opened := [one for one in main.threads[1:] if _is_summarised(one.calls[0], call)]:
            kinds[opened[0]] = "compaction"
            summaries.add(call)
    results = "\n".join(one.content for call in main.calls for one in call.new if one.role == "tool")
    for line in (line for line in lines if line is not main):
        returned = line.tools and any(text in results for call in line.calls if (text := _answer(call)))
        several = any(len(one.calls) > 1 for one in line.threads) or any(
            _goes_on(later.calls[0].request.messages, before.calls[-1]) for before, later in pairwise(line.threads)
        )
        kinds |= dict.fromkeys(line.threads, "subagent" if returned or several else "side")
    kinds |= {thread: "summary" for thread in threads if summaries.issuperset(thread.calls)}
    replied = sorted(main.calls, key=lambda call: call.answered_at)
    return Sorted(kinds=kinds, main=tuple(replied), summaries=frozenset(summaries))


@dataclass(kw_only=True, eq=False)
class ThreadLine:
    """The threads of one conversation, in the order of their first requests. One that `looks_back` begins with another
    line's messages."""

    threads: list[Thread] = field(default_factory=list)
    looks_back: bool = False

    @property
    def calls(self) -> list[AgentCall]:
        return [call for thread in self.threads for call in thread.calls]

    @property
    def tools(self) -> int:
        return max(len(call.request.tools) for call in self.calls)

    def is_within(self, other: ThreadLine) -> bool:
        """Whether the other line was asking before, and after."""
        asked, around = ([call.asked_at for call in line.calls] for line in (self, other))
        return min(around) < min(asked) and max(asked) < max(around)


def _lines(threads: Sequence[Thread]) -> list[ThreadLine]:
    """Divide threads, in the order of their first requests, into lines: a thread belongs to that with the same system
    prompt and tools, or to that whose last reply it continues, with the result of a tool (a handoff) or with no fewer
    tools (a clock in the system prompt). With fewer tools it only looks back, for a summary or for notes."""
    lines: list[ThreadLine] = []
    known: dict[str, ThreadLine] = {}
    for thread in threads:
        first = thread.calls[0]
        identity, messages = _identity(first.request), first.request.messages
        before = [
            line for line in lines if (last := line.calls[-1]).answered_at < first.asked_at and _goes_on(messages, last)
        ]
        continued = [
            line
            for line in before
            if messages[-1].role == "tool" or len(line.calls[-1].request.tools) <= len(first.request.tools)
        ]
        line = known.get(identity) or next(iter(continued), None)
        if line is None:
            line = ThreadLine(looks_back=bool(before))
            lines.append(line)
        line.threads.append(thread)
        known[identity] = line
    return lines


def _main_line(lines: Sequence[ThreadLine]) -> ThreadLine:
    """Return the line of the task: one that is not within another's time, as subagents are, and does not look back; of
    those, one with most replies, then with most tools, then with the last reply."""
    outer = [line for line in lines if not line.looks_back and not any(line.is_within(other) for other in lines)]
    return max(outer, key=lambda line: (len(line.calls), line.tools, max(call.answered_at for call in line.calls)))


def _is_summarised(opening: AgentCall, call: AgentCall) -> bool:
    """Whether a thread opens with what an earlier call replied, in a message of somebody else."""
    text = _answer(call)
    return (
        call.answered_at < opening.asked_at
        and len(text) >= SUMMARY_CHARACTERS
        and any(text in message.content for message in opening.request.messages if message.role in ("system", "user"))
    )


def _goes_on(messages: Sequence[Message], call: AgentCall) -> bool:
    """Whether messages go on from a call's reply, whatever the system prompt; thinking may be dropped."""
    given, before = _spoken(messages), _spoken((*call.request.messages, call.message))
    return len(given) > len(before) and all(
        _said(one) == _said(other) for one, other in zip(given, before, strict=False)
    )


def _spoken(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role != "system"]


def _said(message: Message) -> str:
    return said(replace(message, content=after_thinking(message.content), reasoning_content=None))


def _answer(call: AgentCall) -> str:
    return after_thinking(call.text).strip()


def _identity(request: AgentRequest) -> str:
    system = takewhile(lambda message: message.role == "system", request.messages)
    return json.dumps([[message.content for message in system], [asdict(tool) for tool in request.tools]])
