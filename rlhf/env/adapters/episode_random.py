"""Give each episode its own state of the process-global random generators, which games draw from."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import numpy as np

_LOCK = threading.RLock()
"""One lock for all episodes of the process: its holder uses the global generators exclusively."""


class EpisodeRandom:
    """The random streams of one episode. Within `with streams.drawing():` the global generators continue from the end
    of the episode's previous block; afterwards their earlier state is restored."""

    def __init__(self, seed: int) -> None:
        self._states = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Swap this episode's generator states in, and the previous ones back at the end."""
        with _LOCK:
            before = random.getstate(), np.random.get_state()
            random.setstate(self._states[0])
            np.random.set_state(self._states[1])
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])
