"""A run gets its share of the processor, and not more for being many processes in many sessions."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.sandbox.conftest import Jail

pytestmark = pytest.mark.engine
SECONDS = 1.5
GREEDY = f"""
import os, time, json, resource
end = time.time() + {SECONDS}
for _ in range(48):
    if os.fork() == 0:
        os.setsid()
        while time.time() < end: pass
        os._exit(0)
try:
    while True: os.wait()
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps(used.ru_utime + used.ru_stime))
"""
HONEST = f"""
import time, json
end = time.time() + {SECONDS}
while time.time() < end: pass
print(json.dumps(time.process_time()))
"""


async def test_many_processes_in_many_sessions_take_no_more_than_one_run_s_share(jail: Jail) -> None:
    """Where no control group gives shares there is nothing to measure."""
    if jail.user != "root":
        return
    runs = [asyncio.to_thread(jail.run, code, processes=64) for code in (GREEDY, HONEST)]
    greedy, honest = (json.loads(seen["stdout"]) for seen in await asyncio.gather(*runs))
    assert honest > 0.25 * greedy, (honest, greedy)
