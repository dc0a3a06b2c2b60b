"""Which of an agent's contexts are its main conversation, and which are side calls: known when the episode ends. Pure.

An agent asks the policy for more than its task: for titles, summaries, memories, and for subagents. Its contexts
(*threads*) belong together where they have the same system prompt and tools, or where one continues the other's
messages; of these lines of conversation, one is the main one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise, takewhile
from typing import get_args

from rlhf.chat.thinking import after_thinking
from rlhf.config import load_piece
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
    """Return what a setting trains. Raises `ConfigError` for a function that cannot be loaded."""
    if kinds := TRAINED.get(setting):
        return lambda kind, call: kind in kinds
    function: Trains = load_piece(setting, "agent.train")
    return function


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
    kinds: dict[Thread, ThreadKind] = dict.fromkeys(main, "main")
    summaries: set[AgentCall] = set()
    for call in _calls(threads):
        if opened := [one for one in main[1:] if _is_summarised(one.calls[0], call)]:
            kinds[opened[0]] = "compaction"
            summaries.add(call)
    results = "\n".join(one.content for call in _calls(main) for one in call.new if one.role == "tool")
    for line in (line for line in lines if line is not main):
        returned = _tools(line) and any(text in results for call in _calls(line) if (text := _answer(call)))
        several = any(len(one.calls) > 1 for one in line) or any(
            _goes_on(later.calls[0].request.messages, before.calls[-1]) for before, later in pairwise(line)
        )
        kinds |= dict.fromkeys(line, "subagent" if returned or several else "side")
    kinds |= {thread: "summary" for thread in threads if summaries.issuperset(thread.calls)}
    replied = sorted(_calls(main), key=lambda call: call.answered_at)
    return Sorted(kinds=kinds, main=tuple(replied), summaries=frozenset(summaries))


def _calls(threads: Sequence[Thread]) -> Iterator[AgentCall]:
    return (call for thread in threads for call in thread.calls)


def _lines(threads: Sequence[Thread]) -> list[list[Thread]]:
    """Divide threads, in the order of their first requests, into lines of conversation: a thread belongs to that with
    the same system prompt and tools, or to that whose last reply it continues, if this called a tool (a handoff) or had
    no more tools (a clock in the system prompt). With fewer tools it only looks back, as for a summary or a title."""
    lines: list[list[Thread]] = []
    known: dict[str, list[Thread]] = {}
    for thread in threads:
        first = thread.calls[0]
        identity = _identity(first.request)
        line = known.get(identity) or next(
            (
                line
                for line in lines
                if (last := line[-1].calls[-1]).answered_at < first.asked_at
                and (last.message.tool_calls or len(last.request.tools) <= len(first.request.tools))
                and _goes_on(first.request.messages, last)
            ),
            None,
        )
        if line is None:
            line = []
            lines.append(line)
        line.append(thread)
        known[identity] = line
    return lines


def _main_line(lines: Sequence[list[Thread]]) -> list[Thread]:
    """Return the line of the task: one that is not within another's time, as subagents are; of those, one with most
    replies, then with most tools, then with the last reply."""

    def within(one: list[Thread], other: list[Thread]) -> bool:
        asked, around = ([call.asked_at for call in _calls(line)] for line in (one, other))
        return min(around) < min(asked) and max(asked) < max(around)

    outer = [line for line in lines if not any(within(line, other) for other in lines)]
    return max(
        outer,
        key=lambda line: (sum(len(one.calls) for one in line), _tools(line), max(c.answered_at for c in _calls(line))),
    )


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


def _tools(line: Sequence[Thread]) -> int:
    return max(len(call.request.tools) for call in _calls(line))


def _identity(request: AgentRequest) -> str:
    system = takewhile(lambda message: message.role == "system", request.messages)
    return json.dumps([[message.content for message in system], [asdict(tool) for tool in request.tools]])
