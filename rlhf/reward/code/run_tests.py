"""Run the tests of a row and write a line for each verdict. Shipped into the sandbox: standard library only.

Tests may raise anything, so this catches everything. `script_main` runs them beside the code in one process; the
program of `values` uses the rest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

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
    missing = [name for name in modules if name not in sys.modules and importlib.util.find_spec(name) is None]
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


def script_main() -> NoReturn:
    """Import the code; then read the tests and the key of the verdicts, and run the tests."""
    source, output = os.dup(0), take_output()
    first = read_request(source)
    module: Any = types.ModuleType("solution")
    sys.modules["solution"] = module
    namespace = module.__dict__ if first["together"] else {}
    why = prepare(first["modules"], first["setup"], namespace)
    broken = "" if why else failure(first["code"], module.__dict__)
    rest = read_request(source)
    verdicts = Verdicts(rest["key"], output)
    if not broken and rest["needed"] and not any(hasattr(module, name) for name in rest["needed"]):
        broken = f"it defines none of {', '.join(rest['needed'])}"
    if why or broken:
        verdicts.write("setup" if why else "code", why or f"the code does not run: {broken}")
    else:
        namespace["__name__"] = "__main__"
        run_steps(rest["steps"], namespace, verdicts, lambda: "")
    os._exit(0)
