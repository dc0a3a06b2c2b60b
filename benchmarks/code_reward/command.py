"""`python -m benchmarks code_reward`: processor time of one reply in each form of the code reward, over that of a plain
sandboxed Python that runs the same."""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.scoring import CodeScorer
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import Program
from rlhf.types import Scored

CODE = "def add(a, b):\n    return a + b\n"
ASSERTS = "\n".join(f"assert add({n}, {n}) == {2 * n}" for n in range(10))
PRINTS = "print(sum(map(int, input().split())))"
ROWS: dict[str, tuple[str, Any]] = {
    "values": (CODE, ASSERTS),
    "script": (CODE, f"{ASSERTS}\nassert add.__name__ == 'add'"),
    "stdin": (PRINTS, [{"input": "1 2", "output": "3"}]),
}
"""The reply's code and the tests."""


def main(arguments: Sequence[str]) -> None:
    """Forms and plain runs take turns, so that what else the machine does falls on all. The median counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks code_reward", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="how often each form is measured")
    print("RESULT", json.dumps(asyncio.run(ratios(parser.parse_args(arguments).rounds))), flush=True)


async def ratios(rounds: int) -> dict[str, float]:
    """For each form its processor milliseconds, and the ratio to the plain run."""
    sandbox = Sandbox(queue=Queue(runs=1))
    await sandbox.start()
    scorer, result = CodeScorer(CodeRewardConfig(), sandbox), {}
    for form, (code, tests) in ROWS.items():
        plain = Program(code=code if form == "stdin" else f"{code}{tests}", stdin=b"1 2")

        async def scores(code: str = code, tests: Any = tests, form: str = form) -> bool:
            scored = await scorer.score(f"```python\n{code}\n```", {"tests": tests})
            return isinstance(scored, Scored) and scored.value == 1.0 and f"({form}" in scored.detail

        async def runs(plain: Program = plain) -> bool:
            return (await sandbox.run(plain)).succeeded

        await used(scores)
        pairs = [(await used(scores), await used(runs)) for _ in range(rounds)]
        ours, theirs = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        result |= {f"{form}_cpu_ms": round(1e3 * ours, 1), f"{form}_ratio": round(ours / theirs, 2)}
        print(f"{form}: {1e3 * ours:.1f} ms of processor time, {ours / theirs:.2f} x the plain run", flush=True)
    await sandbox.close()
    return result


async def used(run: Callable[[], Awaitable[bool]]) -> float:
    """Processor seconds of this process and its children for one run."""

    def seconds() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    before = seconds()
    assert await run()
    return seconds() - before
