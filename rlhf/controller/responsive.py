"""An interpreter that lets the event loop of a run go on soon, whatever its threads compute."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_SECONDS = 0.0002
"""How long a thread that packs or records may keep the interpreter from the event loop. The loop gives it away with
every text that it tokenizes; with Python's 5 ms a hundred replies would take half a second to go on."""

RARELY = 20


@contextmanager
def responsive() -> Iterator[None]:
    """Have threads give way sooner, leave the objects of all imports out of garbage collections, and collect all others
    more rarely: with many sessions that takes 50 ms."""
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
