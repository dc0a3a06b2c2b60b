"""Settings of the library that hold for all who use it: what a test sets holds for the code. What the code sets changes
nothing for the tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from decimal import getcontext
from typing import Any

from rlhf.reward.code.checking.chance import Seeded, draw_from


def _context() -> dict[str, Any]:
    now = getcontext()
    traps = [kind.__name__ for kind, is_on in now.traps.items() if is_on]
    return {name: getattr(now, name) for name in OF_A_CONTEXT} | {"traps": traps}


def _set_context(told: dict[str, Any]) -> None:
    now = getcontext()  # which the code may hold
    for name in OF_A_CONTEXT:
        setattr(now, name, told[name])
    for kind in now.traps:
        now.traps[kind] = kind.__name__ in told["traps"]


def _numpy_errors() -> Any:
    return sys.modules["numpy"].geterr() if "numpy" in sys.modules else NUMPY_ERRORS


def _set_numpy_errors(told: dict[str, str]) -> None:
    importlib.import_module("numpy").seterr(**told)


OF_A_CONTEXT = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
"""What numpy begins with."""
READ: Mapping[str, Callable[[], Any]] = {
    "max_str_digits": sys.get_int_max_str_digits,
    "decimal": _context,
    "numpy": _numpy_errors,
}
"""What tells a setting, by a word that is in every text that changes it."""
SET: Mapping[str, Callable[[Any], None]] = {
    "max_str_digits": sys.set_int_max_str_digits,
    "decimal": _set_context,
    "numpy": _set_numpy_errors,
}


class Followed:
    """What tests have set in the library, as far as the code does not have it: settings and generators of random
    numbers."""

    def __init__(self) -> None:
        self._seeded = Seeded()
        self._first: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self._known: dict[str, Any] = {}

    def watch(self, texts: str) -> None:
        """Note from now on what tests of these texts set."""
        if "random" in texts:
            self._seeded.watch()
        self._first = self._before = self._known = {name: read() for name, read in READ.items() if name in texts}

    def told(self) -> dict[str, Any]:
        """What a test has set since the last message, for a message; None where it is as it was."""
        self._before, self._known = self._known, {name: READ[name]() for name in self._known}
        changed = {name: value for name, value in self._known.items() if value != self._before[name]}
        changed = {name: None if value == self._first[name] else value for name, value in changed.items()}
        parts = {"settings": changed, "seeded": self._seeded.told()}
        return {name: part for name, part in parts.items() if part}

    def tell_again(self) -> None:
        """The message was none."""
        self._known = self._before
        self._seeded.tell_again()


class Follower:
    """What the code has of the tests' settings, and what its own were."""

    def __init__(self) -> None:
        self._own: dict[str, Any] = {}

    def follow(self, message: Mapping[str, Any]) -> None:
        """Set in the code's process what a test has set in its own."""
        for name, value in message.get("settings", {}).items():
            self._own.setdefault(name, READ[name]())
            SET[name](self._own.pop(name) if value is None else value)
        draw_from(message.get("seeded", {}))
