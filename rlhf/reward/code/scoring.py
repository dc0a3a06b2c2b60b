"""Score code that the policy wrote, by the task's unit tests in a sandbox. Expected results never enter the process of
the code, and the verdict is made outside it: in another process of the sandbox (`values`), or here (`stdin`). Tests
that need the objects of the code run in its process (`script`), and trust it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf.errors import ConfigError, SandboxBroken, SandboxBusy
from rlhf.http.binding import token_from
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.read_tests import Pairs, PythonTests, Tests, TestsError, read_tests, solution_of, with_prefix
from rlhf.reward.code.run_tests import LENGTH_DIGITS
from rlhf.reward.code_block import code_of
from rlhf.sandbox.client import RemoteSandbox, RetryingRunner
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import MIB, Program, ProgramResult, ProgramRunner, SandboxLimits, TerminationReason
from rlhf.types import Scored, Trajectory, Unscored
from rlhf.untrusted_text import escape_to_line

PROGRAM = Path(__file__).with_name("run_tests.py").read_text(encoding="utf-8")
"""The program that runs tests in the sandbox, as text."""
WAIT_SECONDS = 86_400.0
"""Maximum wait for a free slot of this machine's sandbox: slow replies must not leave later ones without a score."""
QUEUE_SECONDS = 330.0
"""Minimum wait for a server's queue: ours refuses requests that waited for 300 s."""
BROKE = "broke the sandbox"
KNOWN_CODE = """
import os
def twice(x): return 2 * x
def can_open(name): return os.open(f'/proc/{os.getppid()}/{name}', os.O_RDONLY) > 0
"""
KNOWN_VERDICTS = {"twice(2) == 4": True, "twice(2) == 5": False, "can_open('mem')": False, "can_open('fd/0')": False}
KNOWN_TESTS = PythonTests(steps=tuple((f"assert {test}", True) for test in KNOWN_VERDICTS), names=("twice", "can_open"))


class CodeScorer:
    """A `Scorer` for code. `row` is the task's row, with the tests in the column that the settings name."""

    def __init__(self, config: CodeRewardConfig, runner: ProgramRunner | None = None) -> None:
        self.config, self._runner = config, runner or make_runner(config)
        self.close = self._runner.close
        self._decided: dict[tuple[PythonTests, str], PythonTests | None] = {}

    async def start(self) -> None:
        """Start the sandbox and judge a known reply. Raises `ConfigError`, `SandboxUnavailable`, `SandboxBroken`."""
        await self._runner.start()
        if not await self._judges_rightly():
            raise ConfigError(
                "reward.code: the sandbox judges known code wrongly, or lets it read the process of its tests"
            )

    async def scores(self, played: Sequence[Trajectory], row: Mapping[str, Any]) -> list[Scored | Unscored]:
        return await asyncio.gather(*(self.score(one.response, row) for one in played))

    async def score(self, response: str, row: Mapping[str, Any]) -> Scored | Unscored:
        """Return the share of the row's tests that the reply's code passes, or whether it passes all. Code that fails
        in any way scores 0. A row without usable tests and a broken sandbox give no score; if the sandbox breaks twice
        over the code but judges known code rightly each time after, the code broke it."""
        detail = ""
        for _ in range(2):
            try:
                return await self._score(code_of(response), row)
            except (TestsError, SandboxBusy) as error:
                return Unscored(kind="no tests" if isinstance(error, TestsError) else "sandbox", detail=str(error))
            except SandboxBroken as error:
                detail = str(error)
                with contextlib.suppress(SandboxBroken, SandboxBusy):
                    if await self._judges_rightly():
                        continue
                return Unscored(kind="sandbox", detail=detail)
        return Unscored(kind=BROKE, detail=detail)

    async def tests_of(self, row: Mapping[str, Any]) -> Tests:
        """Return the row's tests in the form in which they run. Raises `TestsError`, `SandboxBusy`."""
        tests = read_tests(row, self.config)
        if self.config.solution_column is None or not isinstance(tests, PythonTests):
            return tests
        solution = with_prefix(solution_of(row, self.config), row, self.config)
        if (tests, solution) not in self._decided:
            self._decided[tests, solution] = await self._decide(tests, solution)
        if not (decided := self._decided[tests, solution]):
            raise TestsError("the data set's own solution does not pass the tests")
        return decided

    async def _decide(self, tests: PythonTests, solution: str) -> PythonTests | None:
        beside = tests.why or "the data set's own solution passes only in their process"
        try:
            for decided in (replace(tests, why=""), replace(tests, why=beside)):
                if not any(await self._python(solution, decided)):
                    return decided
        except SandboxBroken as error:  # not a reply's fault
            raise SandboxBusy(f"the sandbox broke over the data set's own solution: {error}") from error
        return None

    async def _score(self, code: str, row: Mapping[str, Any]) -> Scored | Unscored:
        tests = await self.tests_of(row)
        form = tests.form if isinstance(tests, PythonTests) else "stdin"
        if isinstance(tests, PythonTests) and form == "script" and self.config.trusting == "refuse":
            return Unscored(kind="trusting", detail=f"its tests trust the code: {tests.why}")
        code = with_prefix(code, row, self.config)
        failures = await (self._python(code, tests) if isinstance(tests, PythonTests) else self._pairs(code, tests))
        passed = failures.count("")
        value = passed / len(failures) if self.config.score == "share" else float(passed == len(failures))
        first = next((f"; test {place}: {why}"[:400] for place, why in enumerate(failures, 1) if why), "")
        how = f"{form}, trusting" if form == "script" else form
        return Scored(value=value, detail=escape_to_line(f"{passed} of {len(failures)} tests pass ({how}){first}"))

    async def _judges_rightly(self) -> bool:
        return [not why for why in await self._python(KNOWN_CODE, KNOWN_TESTS)] == [*KNOWN_VERDICTS.values()]

    async def _python(self, code: str, tests: PythonTests) -> list[str]:
        """Run tests in Python. Return why each fails; empty for those that pass. Raises `TestsError`."""
        key, is_apart = secrets.token_hex(16), tests.form == "values"
        about = {"code": code, "setup": tests.setup, "together": tests.together}
        rest = {"key": key, "steps": tests.steps, "names": tests.names}
        parts = [json.dumps(part).encode() for part in ([about | rest] if is_apart else [about, rest])]
        stdin = b"".join(b"%*d%s" % (LENGTH_DIGITS, len(part), part) for part in parts)
        run = await self._run(f"{PROGRAM}\n{tests.form}_main()\n", stdin, self.config.timeout_seconds)
        lines = (line.split(" ", 2) for line in run.stdout.split("\n") if line.startswith(f"{key} "))
        verdicts = {line[1]: line[2] for line in lines if len(line) == 3}
        if "setup" in verdicts:
            if is_apart or not code:
                raise TestsError(f"the set-up fails: {verdicts['setup']}")
            await self._python("", tests)  # in the code's process, the code may have said so
        silence = verdicts.get("code") or run.detail or f"the tests exited with code {run.return_code}"
        places = range(sum(is_test for _, is_test in tests.steps))
        return [verdicts.get(str(place), silence) if is_apart or "end" in verdicts else silence for place in places]

    async def _pairs(self, code: str, pairs: Pairs) -> list[str]:
        """Run a program on each input in turn until their total time is up. Return why each fails."""
        left, failures = self.config.pairs_timeout_seconds, list[str]()
        for given, wanted in pairs:
            if left <= 0:
                break
            run = await self._run(code, given.encode(errors="replace"), min(self.config.timeout_seconds, left))
            left -= run.seconds
            failures.append(output_failure(run, wanted))
        return failures + ["the time for all pairs ran out before this one"] * (len(pairs) - len(failures))

    async def _run(self, program: str, stdin: bytes, seconds: float) -> ProgramResult:
        memory = self.config.memory_mb * MIB
        run = await self._runner.run(Program(code=program, stdin=stdin, wall_seconds=seconds, memory_bytes=memory))
        if run.ending is TerminationReason.REFUSED:
            raise SandboxBroken(f"the sandbox does not take the program: {run.detail}")
        return run


def output_failure(run: ProgramResult, wanted: str) -> str:
    """Return why the output differs from the expected lines, apart from blanks at their ends and roundings."""
    if not run.succeeded:
        return run.detail or f"the program exited with code {run.return_code}"
    lines, expected = (text.rstrip().split("\n") for text in (run.stdout, wanted))
    is_right = len(lines) == len(expected) and all(map(same_line, lines, expected))
    return "" if is_right else "the output is wrong"


def same_line(line: str, expected: str) -> bool:
    """Whether two lines are the same, apart from blanks at the end and from numbers that are nearly the same."""
    words, wanted = line.split(), expected.split()
    return line.rstrip() == expected.rstrip() or (len(words) == len(wanted) and all(map(_is_near, words, wanted)))


def _is_near(word: str, expected: str) -> bool:
    try:
        is_number = "." in expected and math.isclose(float(word), float(expected), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return word == expected
    return is_number or word == expected


def make_runner(config: CodeRewardConfig) -> ProgramRunner:
    """Return a runner for the configured sandbox server, else for this process's sandbox."""
    if config.url:
        seconds = max(QUEUE_SECONDS, config.max_concurrent_requests * config.timeout_seconds)
        remote = RemoteSandbox(config.url, token_from(config.token_env), seconds + config.timeout_seconds)
        return RetryingRunner(remote, config.max_concurrent_requests, seconds)
    limits = SandboxLimits(wall_seconds=config.timeout_seconds, memory_bytes=config.memory_mb * MIB)
    queue = Queue(runs=config.max_concurrent_runs, waiting=1_000_000, wait_seconds=WAIT_SECONDS)
    return Sandbox(limits, queue, python=config.python, allow_rlimits=config.allow_rlimits)
