"""What Ray does to its driver's signals is undone."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator

import pytest

from rlhf.cluster.quiet_ray import keep_our_sigterm


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that our handler has heard."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


def test_our_handler_hears_sigterm_although_a_c_library_set_its_own(heard: list[int]) -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    ignore = ctypes.c_void_p(1)
    libc.signal(signal.SIGTERM, ignore)
    signal.raise_signal(signal.SIGTERM)
    assert heard == [], "the library's handler stands in the way"
    keep_our_sigterm()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
