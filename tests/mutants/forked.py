"""Runs the tests of one module against each of its mutants: everything is imported and collected once, and each mutant
is a fork that puts its own code into one function and runs the tests. A process of its own; prints a line a mutant."""

from __future__ import annotations

import functools
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, TextIO

import pytest
from hypothesis import Phase, settings

from tests.mutants.library import ROOT, Mutant, mutants_of, provide

FACTOR, LEAST_SECONDS = 10.0, 5.0
"""A mutant is given up after so many times what the tests take without it, and never before so long."""
SECOND_TRY = 4.0
"""How much longer a mutant that was given up has when it is tried again: others may have kept the machine busy, and one
that computes the same would count as caught."""
CLEAN_SECONDS = 300.0
NO_END = "no end within"
MEMORY_BYTES = 8 * 2**30
"""A loop that a mutant keeps from ending may fill lists."""


class Forks:
    """A pytest plugin that runs the collected tests once a mutant instead of once."""

    def __init__(self, module: str, mutants: Sequence[Mutant], out: TextIO) -> None:
        self._module, self._mutants, self._out = module, mutants, out

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        seconds: dict[str, float] = {}
        began = time.monotonic()
        if failed := forked(session, None, CLEAN_SECONDS, seconds):
            self._say({"error": f"without any mutant, {failed} does not pass"})
            return True
        limit = max(LEAST_SECONDS, FACTOR * (time.monotonic() - began))
        session.items.sort(key=lambda item: seconds[item.nodeid])
        for mutant in self._mutants:
            prepare = functools.partial(self._replace, mutant)
            failed = forked(session, prepare, limit, {})
            if failed.startswith(NO_END):
                failed = forked(session, prepare, SECOND_TRY * limit, {})
            self._say({"function": mutant.function, "was": mutant.was, "is": mutant.is_, "failed": failed})
        return True

    def _say(self, line: dict[str, str]) -> None:
        print(f"\n{json.dumps(line)}", file=self._out, flush=True)  # pytest writes its dots on the same line

    def _replace(self, mutant: Mutant) -> None:
        function_of(importlib.import_module(self._module), mutant.function).__code__ = mutant.code


def function_of(module: Any, qualified_name: str) -> FunctionType:
    """The function itself, beneath whatever decorates it."""
    found = module
    for name in qualified_name.split("."):
        found = vars(found)[name]
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        match found:
            case property(fget=inner) | staticmethod(__func__=inner) | classmethod(__func__=inner):
                found = inner
            case functools.partial(func=inner):
                found = inner
            case _:
                found = found.__wrapped__
    return found


def forked(session: pytest.Session, prepare: Any, limit_seconds: float, seconds: dict[str, float]) -> str:
    """The first test that fails in a fork, or what else ended it; empty when all pass, and `seconds` says how long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os._exit(_run(session, prepare, writing))
    os.close(writing)
    said, deadline, given_up = b"", time.monotonic() + limit_seconds, False
    while (left := deadline - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        if not (part := os.read(reading, 65536)):
            break
        said += part
    else:
        given_up = True
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if status == 0 and said:
        answer = json.loads(said)
        seconds |= answer["seconds"]
        return str(answer["failed"])
    return f"{NO_END} {limit_seconds:.0f} s" if given_up else f"wait status {status}"


def _run(session: pytest.Session, prepare: Any, writing: int) -> int:
    """In the fork: the exit code, after the answer was written."""
    seconds, failed = {}, ""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    if prepare is not None:
        prepare()
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        began = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        seconds[item.nodeid] = time.monotonic() - began
        if session.testsfailed:
            failed = item.nodeid
            break
    with os.fdopen(writing, "w") as answer:
        json.dump({"failed": failed, "seconds": seconds}, answer)
    return 0


def main(file: str, tests: Sequence[str]) -> int:
    provide()
    # The same examples for every mutant; and one that fails need not be made small.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", derandomize=True, database=None, phases=phases, deadline=None)
    settings.load_profile("mutants")
    path = ROOT / file
    mutants = list(mutants_of(path.read_text(), str(path)))
    module = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:  # pytest keeps what is written to the one it knows
        code = pytest.main([*options, *tests], plugins=[Forks(module, mutants, out)])
    return 0 if code in (0, 1) else int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
