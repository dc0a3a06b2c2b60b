"""Process-global random numbers that belong to one episode at a time.

Games that draw from the module `random` (or numpy's global generator) would otherwise draw from one another's stream,
and an episode would depend on which others are played beside it.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import numpy as np

_LOCK = threading.RLock()
"""One for all episodes of the process: whoever holds it has the global generators to itself."""


class OwnRandom:
    """The streams of one episode. Within `with own.drawing():` the global generators are its own, and go on where they
    stood at the end of its last block; afterwards they are as they were before."""

    def __init__(self, seed: int) -> None:
        with self._kept():
            random.seed(seed)
            np.random.seed(seed % 2**32)
            self._states = random.getstate(), np.random.get_state()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        with self._kept():
            random.setstate(self._states[0])
            np.random.set_state(self._states[1])
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        with _LOCK:
            states = random.getstate(), np.random.get_state()
            try:
                yield
            finally:
                random.setstate(states[0])
                np.random.set_state(states[1])
