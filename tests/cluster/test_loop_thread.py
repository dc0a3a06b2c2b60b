"""A background loop gives blocking calls deadlines that hold, in one thread."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from rlhf.cluster.loop_thread import BackgroundLoop
from rlhf.errors import DeadlinePassed
from tests.pace import scaled


async def test_calls_in_one_thread_give_their_values_or_errors() -> None:
    calls = BackgroundLoop("calls")
    assert await calls.call("a sum", lambda: 1 + 1, 5) == 2
    with pytest.raises(ZeroDivisionError):
        await calls.call("a quotient", lambda: 1 / 0, 5)
    first = await calls.call("a thread", threading.current_thread, 5)
    assert await calls.call("a thread", threading.current_thread, 5) is first
    assert first.is_alive()


def test_a_call_that_hangs_passes_its_deadline_and_does_not_hold_the_program() -> None:
    program = (
        "import asyncio, time\nfrom rlhf.cluster.loop_thread import BackgroundLoop\n"
        "asyncio.run(BackgroundLoop('calls').call('a nap', lambda: time.sleep(60), 0.2))"
    )
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(30))
    assert DeadlinePassed.__name__ in ended.stderr
    assert "a nap did not answer within 0.2 s" in ended.stderr
    assert time.monotonic() - began < scaled(20)
