"""The process of a scorer: `python -m rlhf.reward.scorer_process MODULE:FUNCTION FD PARENT_PID`. Imports little, to
start fast. The first request holds `arguments` and `memory_bytes`, and is answered `{"ready": true}`. Any other is a
line of `rows`, and its answer `{"value": …}` or `{"kind": …, "detail": …}`."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import resource
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, SupportsFloat

from rlhf.cluster.child_side import connect_to_parent
from rlhf.errors import NoReference, Raised, catch, describe_error, logged_error
from rlhf.reward.row_lines import read_line

ScorerFunction = Callable[[str, dict[str, Any]], Any]


def scorer_process_main(function: str, descriptor: int, parent: int) -> None:
    """Load the scorer, report readiness, and answer requests until the parent closes its end."""
    connection = connect_to_parent(descriptor, parent)
    settings = json.loads(connection.first())
    if size := settings["memory_bytes"]:  # code that exceeds it gets a MemoryError
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    scorer = catch(lambda: load_scorer(function, settings["arguments"]))
    if isinstance(scorer, Raised):
        connection.send(json.dumps({"kind": "import", "detail": logged_error(scorer.error)}))
        return
    connection.send(json.dumps({"ready": True}))
    for line in connection:
        connection.send(json.dumps(score_response(scorer, *read_line(line))))


def load_scorer(function: str, arguments: dict[str, Any]) -> ScorerFunction:
    """Import the function `module:name` and bind its keyword `arguments`."""
    module, _, name = function.partition(":")
    scorer: ScorerFunction = getattr(importlib.import_module(module), name)
    if not callable(scorer):
        raise TypeError(f"{function} is not a function")
    if not arguments:
        return scorer
    inspect.signature(scorer).bind("response", {}, **arguments)
    return partial(scorer, **arguments)


def score_response(scorer: ScorerFunction, response: str, row: dict[str, Any]) -> dict[str, Any]:
    answer = catch(lambda: _message(scorer(response, row)))
    if not isinstance(answer, Raised):
        return answer
    if isinstance(answer.error, NoReference):
        return {"kind": "no answer", "detail": describe_error(answer.error)}
    return {"kind": "raised", "detail": logged_error(answer.error)}


def _message(value: Any) -> dict[str, Any]:
    """Return the message for a scorer's return value, whose methods may be user code too."""
    if not isinstance(value, SupportsFloat):
        return {"kind": "not a number", "detail": f"it returned {value!r:.200}"}
    number = float(value)
    if not math.isfinite(number):
        return {"kind": "not a number", "detail": f"it returned {number}"}
    return {"value": number}


if __name__ == "__main__":
    scorer_process_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
