"""Score code that the policy wrote, by the task's unit tests in a sandbox.

What is expected never enters the process of the code, and the verdict is made outside it: in another process of the
sandbox (`values`), or here (`stdin`). Tests that need the objects of the code run beside it (`script`), and trust it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf.errors import ConfigError, SandboxBroken, SandboxBusy
from rlhf.http.binding import token_from
from rlhf.http.untrusted_text import escape_to_line
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.forms import Form
from rlhf.reward.code.rows import (
    OUTPUT_BYTES,
    InputOutput,
    PythonTests,
    Tests,
    TestsError,
    read_tests,
    solution_of,
    with_prefix,
)
from rlhf.reward.code.run_tests import LENGTH_DIGITS
from rlhf.reward.code_block import code_of
from rlhf.sandbox.client import RemoteSandbox, RetryingRunner
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import MIB, Program, ProgramResult, ProgramRunner, SandboxLimits, TerminationReason
from rlhf.types import Scored, Unscored

LOAD = """import sys, types
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.{form}_main()
"""
WAIT_SECONDS = 86_400.0
"""Maximum wait for a free slot of this machine's sandbox: replies that use all of their time must not leave later ones
without a score."""
QUEUE_SECONDS = 330.0
"""Minimum wait for a server's queue: ours refuses requests that waited for 300 s."""
LONGEST_CODE = 1 << 18
BROKE = "broke the sandbox"
KNOWN_GOOD = """
import os
def twice(x):
    return 2 * x
def looks():
    tests = f'/proc/{os.getppid()}'
    for look in (lambda: open(f'{tests}/mem', 'rb').close(), lambda: os.readlink(f'{tests}/fd/0')):
        try:
            look()
            return True
        except OSError:
            pass
    return False
"""
KNOWN_TESTS = PythonTests(
    steps=tuple((f"assert {test}", True) for test in ("twice(2) == 4", "twice(2) == 5", "looks()")),
    names=("twice", "looks"),
)


def shipped(form: str) -> str:
    """The program that runs tests of this form in the sandbox, as one text: it reads no file."""
    names = {"stdin": ["stdin_program"], "values": ["run_tests", "values_program"], "script": ["run_tests"]}[form]
    sources = {f"{__package__}.{name}": Path(__file__).with_name(f"{name}.py").read_text() for name in names}
    return LOAD.format(sources=sources, form=form)


class CodeScorer:
    """A `Scorer` for code. `row` is the task's row, with the tests in the column that the settings name."""

    def __init__(self, config: CodeRewardConfig, runner: ProgramRunner) -> None:
        self.config, self._runner = config, runner
        self._programs = {form: shipped(form) for form in ("stdin", "values", "script")}
        self._forms: dict[tuple[PythonTests, str], Form | None] = {}

    async def start(self) -> None:
        """Start the sandbox and judge a known reply. Raises `ConfigError`, `SandboxUnavailable`, `SandboxBroken`."""
        await self._runner.start()
        if not await self._judges_rightly():
            raise ConfigError(
                "reward.code: the sandbox cannot run tests: a right and a wrong one do not come out so, or the code "
                "can look into the process of its tests; a sandbox that runs programs as a user does not let it"
            )

    async def score(self, response: str, row: Mapping[str, Any]) -> Scored | Unscored:
        """The share of the row's tests that the reply's code passes, or whether it passes all. Code that fails in any
        way scores 0. A row without usable tests and a broken sandbox give no score; a sandbox that breaks twice over
        the code, and judges known code rightly in between, was broken by it."""
        breaks = 0
        while True:
            try:
                tests, code = await self.tests_of(row), code_of(response)
                if isinstance(tests, PythonTests) and tests.form == "script" and self.config.trusting == "refuse":
                    return Unscored(kind="trusting", detail=f"its tests trust the code: {tests.why}")
                if len(code) > LONGEST_CODE:
                    return Scored(value=0.0, detail=f"the code has more than {LONGEST_CODE} letters")
                return self._scored(await self._failures(with_prefix(code, row, self.config), tests), tests)
            except TestsError as error:
                return Unscored(kind="no tests", detail=str(error))
            except SandboxBusy as error:
                return Unscored(kind="sandbox", detail=str(error))
            except SandboxBroken as error:
                breaks += 1
                if breaks == 2:
                    return Unscored(kind=BROKE, detail=str(error))
                with contextlib.suppress(SandboxBroken, SandboxBusy):
                    if await self._judges_rightly():
                        continue
                return Unscored(kind="sandbox", detail=str(error))

    async def tests_of(self, row: Mapping[str, Any]) -> Tests:
        """The row's tests in the form that they run in, which the data set's own solution decides if it is named.

        Raises `TestsError`, `SandboxBusy`."""
        tests = read_tests(row, self.config)
        if self.config.solution_column is None or not isinstance(tests, PythonTests):
            return tests
        solution = with_prefix(solution_of(row, self.config), row, self.config)
        if (tests, solution) not in self._forms:
            self._forms[tests, solution] = await self._form_of(tests, solution)
        if (form := self._forms[tests, solution]) is None:
            raise TestsError("the data set's own solution does not pass the tests")
        why = "" if form == "values" else tests.why or "the data set's own solution passes only beside them"
        return replace(tests, form=form, why=why)

    async def _form_of(self, tests: PythonTests, solution: str) -> Form | None:
        forms: tuple[Form, ...] = ("values", "script")
        try:
            for form in forms:
                if not any(await self._python(solution, replace(tests, form=form))):
                    return form
        except SandboxBroken as error:  # no reply is to blame
            raise SandboxBusy(f"the sandbox broke over the data set's own solution: {error}") from error
        return None

    def _scored(self, failures: Sequence[str], tests: Tests) -> Scored:
        passed = failures.count("")
        value = passed / len(failures) if self.config.score == "share" else float(passed == len(failures))
        form = tests.form if isinstance(tests, PythonTests) else "stdin"
        first = next((f"; test {place}: {why}"[:400] for place, why in enumerate(failures, 1) if why), "")
        how = f"{form}, trusting" if form == "script" else form
        return Scored(value=value, detail=escape_to_line(f"{passed} of {len(failures)} tests pass ({how}){first}"))

    async def close(self) -> None:
        await self._runner.close()

    async def _judges_rightly(self) -> bool:
        return [not why for why in await self._python(KNOWN_GOOD, KNOWN_TESTS)] == [True, False, False]

    async def _failures(self, code: str, tests: Tests) -> list[str]:
        """Why each test fails; empty for those that pass."""
        return await (self._python(code, tests) if isinstance(tests, PythonTests) else self._pairs(code, tests))

    async def _python(self, code: str, tests: PythonTests) -> list[str]:
        """Run tests in Python, apart from the code or beside it. Raises `TestsError` if they cannot run here."""
        key, count = secrets.token_hex(16), sum(is_test for _, is_test in tests.steps)
        about = {"code": code, "modules": tests.modules, "setup": tests.setup, "together": tests.together}
        rest = {"key": key, "steps": tests.steps, "names": tests.names, "needed": tests.needed}
        parts: list[dict[str, Any]] = [about | rest] if tests.form == "values" else [about, rest]
        stdin = b"".join(b"%*d%s" % (LENGTH_DIGITS, len(part), part) for part in map(as_bytes, parts))
        run = await self._run(self._programs[tests.form], stdin, self.config.timeout_seconds)
        verdicts = {str(place): why for place, why in written_lines(run.stdout, f"{key} ", (str | int, str))}
        if "setup" in verdicts:
            if tests.form == "script" and code:  # beside the code that is the code's word
                await self._python("", tests)
            else:
                raise TestsError(verdicts["setup"])
        silence = verdicts.get("code") or run.detail or f"the tests ended with code {run.return_code}"
        ended = tests.form == "values" or "end" in verdicts
        return [verdicts.get(str(place), silence) if ended else silence for place in range(count)]

    async def _pairs(self, code: str, pairs: Sequence[InputOutput]) -> list[str]:
        """Run a program on all inputs in one run of the sandbox. A run that ends early is the fault of the input at
        which it ended; another goes on behind it, until the time of all is over."""
        left, failures = self.config.pairs_timeout_seconds, list[str]()
        while len(failures) < len(pairs) and left > 0:
            rest, seconds = pairs[len(failures) :], min(self.config.timeout_seconds, left)
            asked = {"code": code, "inputs": [pair.stdin for pair in rest], "seconds": seconds}
            run = await self._run(self._programs["stdin"], as_bytes(asked), left)
            left -= max(run.seconds, 0.001)
            ends = written_lines(run.stdout, "", (str, str))
            failures += [output_failure(why, text, pair.stdout) for (why, text), pair in zip(ends, rest, strict=False)]
            if len(ends) < len(rest) and (not run.succeeded or not ends):
                failures.append(run.detail or "the program ended the run")
        return (failures + ["the time for all pairs was over before it"] * len(pairs))[: len(pairs)]

    async def _run(self, program: str, stdin: bytes, seconds: float) -> ProgramResult:
        memory = self.config.memory_mb * MIB
        run = await self._runner.run(Program(code=program, stdin=stdin, wall_seconds=seconds, memory_bytes=memory))
        if run.ending is TerminationReason.REFUSED:
            raise SandboxBroken(f"the sandbox does not take the program: {run.detail}")
        return run


def written_lines(stdout: str, before: str, kinds: tuple[Any, ...]) -> list[list[Any]]:
    """The JSON lists of these kinds that stand alone on the lines with this beginning. The code may have written any
    other line."""
    found = []
    for line in stdout.split("\n"):
        if line.startswith(f"{before}["):
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line.removeprefix(before)))
    return [one for one in found if len(one) == len(kinds) and all(map(isinstance, one, kinds))]


def output_failure(why: str, packed: str, wanted: str) -> str:
    """Why the output of a program is not what is wanted: the same lines, blanks at their ends aside. A number with a
    decimal point may be off by a millionth."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), 2 * OUTPUT_BYTES)
    except (ValueError, zlib.error):
        return "the program broke its output"
    lines, expected = (text.rstrip().split("\n") for text in (data.decode(errors="replace"), wanted))
    right = len(lines) == len(expected) and all(map(same_line, lines, expected))
    return why or ("" if right else "it prints something else")


def same_line(line: str, expected: str) -> bool:
    """Whether two lines are the same but for blanks at the end, or for numbers that are nearly the same."""
    words, wanted = line.split(), expected.split()
    return line.rstrip() == expected.rstrip() or (len(words) == len(wanted) and all(map(_is_near, words, wanted)))


def _is_near(word: str, expected: str) -> bool:
    with contextlib.suppress(ValueError):
        is_number = "." in expected and word != expected
        return math.isclose(float(word), float(expected), rel_tol=1e-6, abs_tol=1e-6) if is_number else word == expected
    return False


def as_bytes(request: Mapping[str, Any]) -> bytes:
    """A request to a program in the sandbox."""
    return json.dumps(request).encode()


def make_code_scorer(config: CodeRewardConfig) -> CodeScorer:
    """The scorer that `config` describes. Nothing is started before `start`."""
    return CodeScorer(config, make_runner(config))


def make_runner(config: CodeRewardConfig) -> ProgramRunner:
    """A runner for the configured sandbox server, else for this process's sandbox."""
    longest = max(config.timeout_seconds, config.pairs_timeout_seconds)
    if config.url:
        at_once = config.max_concurrent_requests
        seconds = max(QUEUE_SECONDS, at_once * config.timeout_seconds)  # were each of ours to use all of its
        remote = RemoteSandbox(config.url, token_from(config.token_env), seconds + longest)
        return RetryingRunner(remote, at_once, seconds)
    limits = SandboxLimits(wall_seconds=longest, memory_bytes=config.memory_mb * MIB)
    queue = Queue(runs=config.max_concurrent_runs, waiting=1_000_000, wait_seconds=WAIT_SECONDS)
    return Sandbox(limits, queue, python=config.python, allow_rlimits=config.allow_rlimits)
