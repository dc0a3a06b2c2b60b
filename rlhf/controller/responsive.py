"""An interpreter that lets the event loop of a run go on soon, whatever its threads compute."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_SECONDS = 0.001
"""How long a thread that packs or records may keep the interpreter from the event loop. The loop gives it away with
every text that it tokenizes; with Python's 5 ms a hundred replies would take half a second to go on."""


@contextmanager
def responsive() -> Iterator[None]:
    """Have threads give way sooner, and leave the objects of all imports out of garbage collections."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)
