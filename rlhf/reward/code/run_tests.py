"""Run the tests of a row and write a line for each verdict. Shipped into the sandbox: standard library only.

Tests may raise anything, so this catches everything.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

LENGTH_DIGITS = 12


class Verdicts:
    """Writes lines: the key of this run, then a test's place (or "setup", "code", "end"), and why it fails, if so."""

    def __init__(self, key: str, descriptor: int) -> None:
        self._key, self._descriptor, self._write = key, descriptor, os.write

    def write(self, place: int | str, why: str = "") -> None:
        self._write(self._descriptor, f"{self._key} {json.dumps([place, why[:300]])}\n".encode())


def read_request(source: int) -> Any:
    """Read one JSON text of a stream, not a byte of the next. Its length is before it."""
    size, data = int(os.read(source, LENGTH_DIGITS)), b""
    while len(data) < size and (part := os.read(source, size - len(data))):
        data += part
    return json.loads(data)


def take_output() -> int:
    """Return a descriptor of the real standard output. From here on nothing else reads or prints anything."""
    output, nothing = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    return output


def prepare(modules: Sequence[str], setup: str, namespace: dict[str, Any]) -> str:
    """Run the set-up. Returns why the tests cannot run here, or an empty text."""
    if "pytest" in modules and importlib.util.find_spec("pytest") is None:
        small: Any = types.ModuleType("pytest")
        small.raises, small.approx, small.fail, sys.modules["pytest"] = raises, Approx, fail, small
    missing = [name for name in modules if name not in sys.modules and importlib.util.find_spec(name) is None]
    namespace["_run_case"] = run_case
    why = f"the sandbox's Python has no module {missing[0]}" if missing else failure(setup, namespace)
    return f"the set-up fails: {why}" if why else ""


def run_steps(
    steps: Sequence[tuple[str, bool]], namespace: dict[str, Any], verdicts: Verdicts, refusal: Callable[[], str]
) -> None:
    """Run texts in one namespace; the flag says whether a text is a test. Tests behind a preparation that fails, fail.
    `refusal` says why a text that raised nothing fails all the same."""
    place, broken = 0, ""
    for text, is_test in steps:
        why = broken or failure(text, namespace)
        why = refusal() or why
        if is_test:
            verdicts.write(place, why)
            place += 1
        else:
            broken = why
    verdicts.write("end")


def failure(text: str, namespace: dict[str, Any]) -> str:
    """Run a text. Returns what it raised, or an empty text."""
    try:
        exec(compile(text, "tests", "exec", dont_inherit=True), namespace)
    except BaseException as error:  # noqa: BLE001
        with contextlib.suppress(BaseException):
            return f"{type(error).__name__}: {error}"
        return "an exception that has no text"
    return ""


def run_case(case: Any, method: str) -> None:
    """Run one method of a `unittest.TestCase` with its fixtures. Raises `AssertionError`."""
    import unittest

    result = unittest.TestResult()
    unittest.TestSuite([case(method)]).run(result)
    wrong = [trace.strip().rpartition("\n")[2] for _, trace in (*result.errors, *result.failures, *result.skipped)]
    if wrong or not result.wasSuccessful():
        raise AssertionError(*wrong[:1])


def fail(reason: str = "", pytrace: bool = True) -> None:
    """`pytest.fail`, where pytest is not installed."""
    raise AssertionError(reason)


class raises:
    """`pytest.raises`, where pytest is not installed."""

    def __init__(self, kinds: Any, call: Any = None, *given: Any, match: str = "", **named: Any) -> None:
        self._kinds, self._match = kinds, match
        if call:
            with self:
                call(*given, **named)

    def __enter__(self) -> raises:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.type, self.value = kind, error
        assert kind, f"did not raise {self._kinds}"
        expected = issubclass(kind, self._kinds)
        assert not expected or re.search(self._match, str(error)), f"{error} does not match {self._match}"
        return expected


class Approx:
    """`pytest.approx`, where pytest is not installed."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self._expected, self._abs = expected, 1e-12 if abs is None else abs
        self._rel = rel or (1e-6 if rel is None and abs is None else 0.0)

    def __eq__(self, given: Any) -> bool:
        if isinstance(self._expected, list | tuple):
            both = zip(given, self._expected, strict=False)
            return len(given) == len(self._expected) and all(Approx(b, self._rel, self._abs) == a for a, b in both)
        return math.isclose(given, self._expected, rel_tol=self._rel, abs_tol=self._abs)
