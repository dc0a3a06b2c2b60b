"""Keep the event loop of a run responsive, whatever its threads compute."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_SECONDS = 0.0002
"""How long a thread that packs or records may keep the interpreter from the event loop. The loop yields it with every
text that it tokenizes; with Python's 5 ms a hundred replies would take half a second to continue."""

RARELY = 20


@contextmanager
def responsive_event_loop() -> Iterator[None]:
    """Make threads yield sooner, exclude the objects of all imports from garbage collection, and collect the others
    more rarely: with many sessions a collection takes 50 ms."""
    before, (young, middle, old) = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(young, middle, RARELY * old)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(young, middle, old)
        sys.setswitchinterval(before)
