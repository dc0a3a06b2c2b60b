"""The process that a scorer runs in: `python -m rlhf.reward.scorer_process MODULE:FUNCTION FD PARENT_PID MEMORY_BYTES
ARGUMENTS`.

Only the standard library and the error names are imported here, so that a worker starts as fast as its scorer can be
imported. A request is a line of `rows`, an answer one line of JSON: `{"value": …}` or `{"kind": …, "detail": …}`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, SupportsFloat

from rlhf.cluster.attempt import Raised, attempt
from rlhf.cluster.parent_death import die_with_parent
from rlhf.errors import NoReference
from rlhf.reward.rows import read_line

Scorer = Callable[[str, dict[str, Any]], Any]


def scorer_process_main(function: str, descriptor: int, parent: int, memory_bytes: int, arguments: str) -> None:
    """Load the scorer, report readiness, and answer requests until the parent closes its end. The address space is
    limited to `memory_bytes`, where that is not 0."""
    die_with_parent(parent)
    die_first_of_memory()
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rwb") as stream:
        scorer = attempt(lambda: load_scorer(function, json.loads(arguments)))
        if isinstance(scorer, Raised):
            _send(stream, {"kind": "import", "detail": _line(scorer.error)})
            return
        _send(stream, {"ready": True})
        for line in stream:
            _send(stream, score_response(scorer, *read_line(line)))


def load_scorer(function: str, arguments: dict[str, Any]) -> Scorer:
    """The function that `module:name` names, with its keyword `arguments` bound."""
    module, _, name = function.partition(":")
    scorer: Scorer = getattr(importlib.import_module(module), name)
    if not callable(scorer):
        raise TypeError(f"{function} is not a function")
    if not arguments:
        return scorer
    inspect.signature(scorer).bind("response", {}, **arguments)
    return partial(scorer, **arguments)


def score_response(scorer: Scorer, response: str, row: dict[str, Any]) -> dict[str, Any]:
    """The result of scoring one response, as a message to the parent."""
    said = attempt(lambda: _message(scorer(response, row)))
    if not isinstance(said, Raised):
        return said
    return {"kind": "no answer" if isinstance(said.error, NoReference) else "raised", "detail": _line(said.error)}


def _message(value: Any) -> dict[str, Any]:
    """The message for a scorer's return value, whose methods may be user code too."""
    if not isinstance(value, SupportsFloat):
        return {"kind": "not a number", "detail": f"it returned {value!r:.200}"}
    number = float(value)
    if not math.isfinite(number):
        return {"kind": "not a number", "detail": f"it returned {number}"}
    return {"value": number}


def die_first_of_memory() -> None:
    """Make the kernel kill this process first, rather than the trainer, when a scorer exhausts the machine's memory."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _send(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


if __name__ == "__main__":
    scorer_process_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
