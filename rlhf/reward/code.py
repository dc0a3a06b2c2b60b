"""Code that the policy wrote, scored by the task's unit tests in a sandbox.

The tests run in a process of their own and the code in another (`checking/`), both inside the sandbox: the code sees
neither the tests nor what they expect, and only plain data comes back from it.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.errors import ConfigError
from rlhf.http.config import token_from
from rlhf.reward.code_config import CodeRewardConfig
from rlhf.reward.code_tests import Asserts, Pair, TestsError, read_tests
from rlhf.sandbox.client import RemoteSandbox
from rlhf.sandbox.limits import MIB, Limits
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import Program, Runner, SandboxBroken, SandboxBusy
from rlhf.types import Scored, Unscored

BLOCK = re.compile(r"```(?:python|py)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
CHECK = "from rlhf.reward.checking.checker import main\nmain()\n"
PACKAGES = ("rlhf", "rlhf/reward", "rlhf/reward/checking")
MODULES = ("checker", "host", "remote", "values")
KNOWN_GOOD = "def twice(x):\n    return 2 * x"


def checking_files() -> dict[str, bytes]:
    """The modules of the checker, as files of a program."""
    folder = Path(__file__).parent / "checking"
    modules = {f"rlhf/reward/checking/{name}.py": (folder / f"{name}.py").read_bytes() for name in MODULES}
    return {f"{package}/__init__.py": b"" for package in PACKAGES} | modules


class CodeScorer:
    """A `Scorer` of code. `row` is the task's row, with the tests in the column that the settings name."""

    def __init__(self, config: CodeRewardConfig, runner: Runner) -> None:
        self._config, self._runner, self._files = config, runner, checking_files()

    async def start(self) -> None:
        """Start the sandbox and judge a good reply. Raises `ConfigError`, `SandboxUnavailable`."""
        await self._runner.start()
        passed = await self._passed(KNOWN_GOOD, ("assert twice(2) == 4", "assert twice(2) == 5"))
        if passed != [True, False]:
            raise ConfigError(f"reward.code: the sandbox cannot run tests, a right and a wrong one came to {passed}")

    async def score(self, response: str, row: Mapping[str, Any]) -> Scored | Unscored:
        """The share of the row's tests that the reply's code passes, or whether it passes all. Code that fails, in
        whatever way, is 0; a row without usable tests and a sandbox that broke give no number."""
        try:
            tests = read_tests(row, self._config.tests_column, self._config.entry_point_column)
            passed = await self._passed(code_of(response), tests)
        except TestsError as error:
            return Unscored(kind="no tests", detail=str(error))
        except (SandboxBroken, SandboxBusy) as error:
            return Unscored(kind="sandbox", detail=str(error))
        share = sum(passed) / len(passed)
        return Scored(value=share if self._config.score == "share" else float(share == 1.0))

    async def close(self) -> None:
        await self._runner.close()

    async def _passed(self, code: str, tests: Asserts | Sequence[Pair]) -> list[bool]:
        if isinstance(tests, tuple):
            return await self._asserts(code, tests)
        return await asyncio.gather(*(self._prints(code, pair) for pair in tests))

    async def _asserts(self, code: str, tests: Asserts) -> list[bool]:
        """Which tests passed: a test passes when the line with this run's nonce says so, and in no other way."""
        nonce = secrets.token_hex(16)
        asked = json.dumps({"nonce": nonce, "code": code, "tests": tests}).encode()
        run = await self._runner.run(self._program(CHECK, asked, self._files))
        told = {tuple(line.split(" ", 3)[:3]) for line in run.stdout.splitlines()}
        return [(nonce, str(index), "passed") in told for index in range(len(tests))]

    async def _prints(self, code: str, pair: Pair) -> bool:
        run = await self._runner.run(self._program(code, pair.stdin.encode(errors="replace"), {}))
        return run.succeeded and _lines(run.stdout) == _lines(pair.stdout)

    def _program(self, code: str, stdin: bytes, files: Mapping[str, bytes]) -> Program:
        return Program(
            code=code,
            stdin=stdin,
            files=files,
            wall_seconds=self._config.timeout_seconds,
            memory_bytes=self._config.memory_mb * MIB,
        )


def make_code_scorer(config: CodeRewardConfig) -> CodeScorer:
    """The scorer that `config` describes. Nothing runs before `start`."""
    return CodeScorer(config, make_runner(config))


def make_runner(config: CodeRewardConfig) -> Runner:
    """The server's sandbox where the settings name one, else that of this process."""
    if config.url:
        return RemoteSandbox(config.url, token_from(config.token_env))
    limits = Limits(wall_seconds=config.timeout_seconds, memory_bytes=config.memory_mb * MIB)
    queue = Queue(runs=config.runs, waiting=1_000_000)
    return Sandbox(limits, queue, python=config.python, allow_rlimits=config.allow_rlimits)


def code_of(response: str) -> str:
    """The last block of Python in a reply; the whole reply where it has none."""
    blocks = BLOCK.findall(response)
    return str(blocks[-1]) if blocks else response


def _lines(text: str) -> list[str]:
    """Lines without the blanks at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
