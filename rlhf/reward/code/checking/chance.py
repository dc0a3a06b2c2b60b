"""Generators of random numbers: what a test seeds, the code draws from. The code's draws change nothing for the tests,
whose inputs it could choose otherwise."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

GENERATORS = {"random": ("getstate", "setstate"), "numpy.random": ("get_state", "set_state")}
"""Modules with a generator that all who use the module share, and the functions that give and take its state."""


class Seeded:
    """The generators that tests have seeded, and in which state the code knows each."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def watch(self) -> None:
        """Note from now on when a generator of a library that is loaded is seeded."""
        for name in GENERATORS:
            if name.partition(".")[0] in sys.modules:
                module: Any = importlib.import_module(name)  # numpy loads it only when it is used
                module.seed = self._noting(name, module.seed)

    def _noting(self, name: str, seed: Callable[..., None]) -> Callable[..., None]:
        def noting(*arguments: Any, **named: Any) -> None:
            seed(*arguments, **named)
            self._known[name] = None

        return noting

    def told(self) -> dict[str, list[Any]]:
        """The states that the code does not know, for a message."""
        changed = {name: now for name, known in self._known.items() if (now := _state(name)) != known}
        self._known |= changed
        return changed

    def tell_again(self) -> None:
        """The message was none."""
        self._known = dict.fromkeys(self._known)


def draw_from(states: Mapping[str, list[Any]]) -> None:
    """Draw from here on as the tests would."""
    for name, (kind, numbers, *rest) in states.items():
        set_state = getattr(importlib.import_module(name), GENERATORS[name][1])
        set_state((kind, tuple(numbers), *rest))


def _state(name: str) -> list[Any]:
    kind, numbers, *rest = getattr(sys.modules[name], GENERATORS[name][0])()
    return [kind, [*map(int, numbers)], *rest]
