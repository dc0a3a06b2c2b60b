"""The process of a scorer: `python -m rlhf.reward.scorer_process MODULE:FUNCTION FD PARENT_PID`. Imports little, to
start fast. The first request holds `arguments` and `memory_bytes`; its answer says how the function is called. Any
other is a line of `request_lines`, with the episodes of a group where the function takes groups, and its answer has
`scores`: `{"value": …}` or `{"kind": …, "detail": …}` for each."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import resource
import sys
from collections.abc import Sequence
from typing import Any, SupportsFloat

from rlhf.cluster.child_side import connect_to_parent
from rlhf.errors import NoReference, Raised, catch, describe_error, logged_error
from rlhf.reward.conventions import DOES_NOT_APPLY, Convention, Episode, convention_of, values_of
from rlhf.reward.row_lines import read_line

WITHOUT = {"kind": DOES_NOT_APPLY, "detail": "it returned None, by which a function of TRL leaves a reply to others"}


def scorer_process_main(function: str, descriptor: int, parent: int) -> None:
    """Load the scorer, report how it is called, and answer requests until the parent closes its end."""
    connection = connect_to_parent(descriptor, parent)
    settings = json.loads(connection.first())
    if size := settings["memory_bytes"]:  # code that exceeds it gets a MemoryError
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    scorer = catch(lambda: load_scorer(function, settings["arguments"]))
    if isinstance(scorer, Raised):
        connection.send(json.dumps({"kind": "import", "detail": logged_error(scorer.error)}))
        return
    connection.send(json.dumps({"convention": scorer.name, "wants": scorer.wants, "grouped": scorer.grouped}))
    with asyncio.Runner() as runner:  # one for all requests: a function may keep its connections
        for line in connection:
            episodes, row = read_line(line)
            scores = scores_of_episodes(scorer, [Episode(row=row, **one) for one in episodes], runner)
            connection.send(json.dumps({"scores": scores}))


def load_scorer(function: str, arguments: dict[str, Any]) -> Convention:
    """Import the function `module:name`, and find how it is called with its keyword `arguments`."""
    module, _, name = function.partition(":")
    scorer = getattr(importlib.import_module(module), name)
    if not callable(scorer):
        raise TypeError(f"{function} is not a function")
    return convention_of(scorer, arguments)


def scores_of_episodes(scorer: Convention, episodes: Sequence[Episode], runner: asyncio.Runner) -> list[dict[str, Any]]:
    """Return a message for each episode. What a call for a group raises is the failure of all of them."""

    async def awaited() -> Any:
        return await scorer.call(episodes)

    def called() -> list[dict[str, Any]]:
        found = runner.run(awaited()) if scorer.waits else scorer.call(episodes)
        values = values_of(found, len(episodes))
        return [WITHOUT if value is None and scorer.name == "TRL" else _message(value) for value in values]

    answer = catch(called)
    if not isinstance(answer, Raised):
        return answer
    missing = isinstance(answer.error, NoReference)
    detail = describe_error(answer.error) if missing else logged_error(answer.error)
    return [{"kind": "no answer" if missing else "raised", "detail": detail}] * len(episodes)


def _message(value: Any) -> dict[str, Any]:
    """Return the message for a scorer's return value, whose methods may be user code too."""
    if not isinstance(value, (float, SupportsFloat)):  # float first: checking a protocol takes microseconds
        return {"kind": "not a number", "detail": f"it returned {value!r:.200}"}
    number = float(value)
    if not math.isfinite(number):
        return {"kind": "not a number", "detail": f"it returned {number}"}
    return {"value": number}


if __name__ == "__main__":
    scorer_process_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
