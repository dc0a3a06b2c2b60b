"""Score code that the policy wrote, by the task's unit tests in a sandbox.

The tests run twice (`checking/`), each time inside the sandbox: in a process of their own, from which the code sees
neither them nor the expected results, and where only plain values come back from it; and, if they pass there, beside
the code, as in one plain Python.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.errors import ConfigError
from rlhf.http.binding import token_from
from rlhf.http.untrusted_text import escape_to_line
from rlhf.reward.code.apart import not_apart
from rlhf.reward.code.block import code_of
from rlhf.reward.code.checking.importing import SETUP_FAILS
from rlhf.reward.code.checking.link import NEEDS_TRUST
from rlhf.reward.code.checking.verdicts import NEVER_ASKED, signature
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.names import bound_by, left_by, names_of_python, names_of_the_code
from rlhf.reward.code.unit_tests import (
    Asserts,
    InputOutput,
    Tests,
    TestsError,
    constants,
    reached_by,
    read_tests,
    with_prefix,
)
from rlhf.sandbox.client import RemoteSandbox
from rlhf.sandbox.in_turn import InTurn
from rlhf.sandbox.limits import MIB, SandboxLimits
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import Program, ProgramResult, ProgramRunner, SandboxBroken, SandboxBusy, TerminationReason
from rlhf.types import Scored, Unscored

SHARED = ("verdicts", "importing")
OF_BESIDE = (*SHARED, "beside")
OF_JUDGE = (
    *SHARED,
    *("arrays", "lines", "values", "objects", "kinds", "exceptions", "host", "link", "guard"),
    *("completeness", "counting", "reach", "stand_ins", "judge"),
)
"""Modules of `checking/`, in the order of their imports."""
LOAD = """import sys, types
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.{start}()
"""
WAIT_SECONDS = 86_400.0
"""Maximum wait for a free slot of this machine's sandbox. Every earlier run ends within its timeout, and replies that
use all of theirs must not leave later ones without a score."""
QUEUE_SECONDS = 330.0
"""Minimum wait for a server's queue: ours refuses requests that waited for 300 s."""
LONGEST_CODE = 2 * MIB
"""What is longer a sandbox may not take."""
ROUNDS = 3
"""So often tests are tried again beside the code, without those that have failed there."""
BROKE = "broke the sandbox"
SIGNED = re.compile(r"^([0-9a-f]{32}) (\d{1,6} (?:passed|failed)(?: [ -~]*)?)$", re.MULTILINE | re.ASCII)
"""A result line, as `checking/verdicts.py` writes it."""
KNOWN_GOOD = """
import os
def twice(x):
    return 2 * x
def looks():
    judge = f'/proc/{os.getppid()}'
    for look in (lambda: open(f'{judge}/mem', 'rb').close(), lambda: os.readlink(f'{judge}/fd/0')):
        try:
            look()
            return True
        except OSError:
            pass
    return False
"""
KEEPS = """
import os
places = {os.getcwd(), *(os.environ.get(name, '/') for name in ('HOME', 'TMPDIR')), '/tmp', '/var/tmp', '/dev/shm', '/'}
marks = [os.path.join(place, MARK) for place in places]
print(*filter(os.path.exists, marks), sep='', end='')
for mark in marks:
    try:
        open(mark, 'w').close()
    except OSError:
        pass
"""
"""Prints what a run before it has left."""
KNOWN_TESTS = Asserts(texts=("assert twice(2) == 4", "assert twice(2) == 5", "assert looks()"))


def checking_program(modules: Sequence[str], start: str) -> str:
    """Modules of `checking/` as one program: it is in memory before the code runs, and no file of it is read later."""
    folder = Path(__file__).parent / "checking"
    sources = {f"rlhf.reward.code.checking.{name}": (folder / f"{name}.py").read_text() for name in modules}
    return LOAD.format(sources=sources, start=start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one test, and why it failed where the reason is known."""

    passed: bool
    why: str = ""

    def hinting(self, hint: str) -> Outcome:
        """The same result, with what may be the reason."""
        return Outcome(passed=self.passed, why=f"{self.why}{hint}")


UNTRIED = Outcome(passed=False, why="in one Python with the code: tests before it fail, without them others")


class CodeScorer:
    """A `Scorer` for code. `row` is the task's row, with the tests in the column that the settings name."""

    def __init__(self, config: CodeRewardConfig, runner: ProgramRunner) -> None:
        self.config, self._runner = config, runner
        self._apart = checking_program(OF_JUDGE, "judge_main")
        self._beside = checking_program(OF_BESIDE, "beside_main")
        self._two_users = self._keeps_nothing = True

    async def start(self) -> None:
        """Start the sandbox and judge a known good reply. Raises `ConfigError`, `SandboxUnavailable`."""
        await self._runner.start()
        self._keeps_nothing = await self._is_forgetful()
        if await self._judges_rightly():
            return
        self._two_users = False  # a Python that cannot start where the real and the effective user differ
        if not await self._judges_rightly():
            raise ConfigError(
                "reward.code: the sandbox cannot run tests: a right and a wrong one do not come out so, or the code "
                "can look into the process of its tests; a sandbox that runs programs as a user does not let it"
            )

    async def score(self, response: str, row: Mapping[str, Any]) -> Scored | Unscored:
        """The share of the row's tests that the reply's code passes, or whether it passes all. Code that fails in any
        way scores 0. A row without usable tests and a broken sandbox give no score."""
        code = code_of(response)
        if len(code) > LONGEST_CODE:
            return Scored(value=0.0, detail=f"the code has more than {LONGEST_CODE} letters")
        try:
            tests, code = read_tests(row, self.config), with_prefix(code, row, self.config)
            return self._scored(await self._outcomes(code, tests), tests)
        except TestsError as error:
            return Unscored(kind="no tests", detail=str(error))
        except RecursionError:
            return Unscored(kind="no tests", detail="a test is nested too deeply")
        except SandboxBusy as error:
            return Unscored(kind="sandbox", detail=str(error))
        except SandboxBroken as error:
            return await self._once_more(code, tests, error)

    async def _once_more(self, code: str, tests: Tests, error: SandboxBroken) -> Scored | Unscored:
        """Decide whether the code broke the sandbox: the sandbox still judges known code correctly, and breaks again
        over this code."""
        try:
            if not await self._judges_rightly():
                return Unscored(kind="sandbox", detail=str(error))
        except (SandboxBroken, SandboxBusy):
            return Unscored(kind="sandbox", detail=str(error))
        try:
            return self._scored(await self._outcomes(code, tests), tests)
        except SandboxBusy as again:
            return Unscored(kind="sandbox", detail=str(again))
        except SandboxBroken as again:
            return Unscored(kind=BROKE, detail=str(again))

    def _scored(self, outcomes: Sequence[Outcome], tests: Tests) -> Scored:
        share = sum(outcome.passed for outcome in outcomes) / len(outcomes)
        value = share if self.config.score == "share" else float(share == 1.0)
        trusting = self.config.tests == "trusting"
        guessed = () if trusting or not isinstance(tests, Asserts) or tests.entry_point else of_the_code(tests)
        how = " (trusting)" if trusting else "" if self._keeps_nothing else " (apart from the code only)"
        return Scored(value=value, detail=in_words(outcomes, how, from_the_code=guessed))

    async def close(self) -> None:
        await self._runner.close()

    async def _judges_rightly(self) -> bool:
        outcomes = await self._outcomes(KNOWN_GOOD, KNOWN_TESTS)
        return [outcome.passed for outcome in outcomes] == [True, False, False]

    async def _is_forgetful(self) -> bool:
        """Whether a run finds nothing of the run before it. Elsewhere code that sees the tests in one run could tell
        the next run of them."""
        program = f"MARK = {f'.mark-{secrets.token_hex(16)}'!r}\n{KEEPS}"
        runs = [await self._run(program, b"", self.config.timeout_seconds) for _ in range(2)]
        return all(run.succeeded and not run.stdout for run in runs)

    async def _outcomes(self, code: str, tests: Tests) -> list[Outcome]:
        if isinstance(tests, Asserts):
            return await self._asserts(code, tests)
        return await self._pairs(code, tests)

    async def _asserts(self, code: str, tests: Asserts) -> list[Outcome]:
        """Run asserts: apart from the code, where it cannot reach them, and those that pass beside it too, as in one
        plain Python. A test passes if it passes in both. The code never sees a test that counts and that it does not
        pass, and no test at all where a run can find what an earlier one has left."""
        if self.config.tests == "trusting":
            return await self._judged(self._beside, code, tests, tests.texts)
        refused = not_apart(tests.texts, tests.setup, tests.entry_point)
        texts = ["" if why else text for text, why in zip(tests.texts, refused, strict=True)]
        apart = await self._judged(self._apart, code, tests, texts)
        hint = kept_from(code, tests)
        apart = [
            Outcome(passed=False, why=f"{why}; {NEEDS_TRUST}") if why else one if one.passed else one.hinting(hint)
            for why, one in zip(refused, apart, strict=True)
        ]
        may_run = [bool(why) or one.why.startswith(NEVER_ASKED) for why, one in zip(refused, apart, strict=True)]
        return await self._counted(code, tests, apart, may_run) if self._keeps_nothing else apart

    async def _counted(
        self, code: str, tests: Asserts, outcomes: list[Outcome], may_run: Sequence[bool]
    ) -> list[Outcome]:
        """Which of the tests that pass apart from the code count: those that pass beside it too, in one Python without
        those that do not. A test that passes after one that fails there is tried again without that one."""
        for _ in range(ROUNDS):
            if not any(one.passed for one in outcomes):
                return outcomes
            run = [one.passed or may for one, may in zip(outcomes, may_run, strict=True)]
            beside = await self._judged(self._beside, code, tests, tests.texts if all(run) else reached_by(tests, run))
            judged = [both(*one) if one[0].passed else one[0] for one in zip(outcomes, beside, strict=True)]
            failing = [
                at for at, (was, now) in enumerate(zip(outcomes, judged, strict=True)) if was.passed > now.passed
            ]
            outcomes = judged
            if not failing or not any(one.passed for one in outcomes[failing[0] :]):
                return outcomes
        return outcomes[: failing[0]] + [UNTRIED if one.passed else one for one in outcomes[failing[0] :]]

    async def _judged(self, program: str, code: str, tests: Asserts, texts: Sequence[str]) -> list[Outcome]:
        """Run a program of `checking/` on what it is to see of the texts of the tests. One passes only by a result line
        that is signed with this run's key. Raises `TestsError` if the set-up fails, and fails without the code too,
        which may say so, or leave it no memory."""
        asked: dict[str, Any] = {
            "key": (key := secrets.token_hex(16)),
            "code": code,
            "tests": texts,
            "names": of_the_code(tests),
            "tested": [*tests.names, *([tests.entry_point] if tests.entry_point else [])],
            "setup": tests.setup,
            "seconds": self.config.timeout_seconds,
            "together": self.config.tests == "trusting",
        }
        if program is self._apart:
            asked |= {
                "imports": tests.texts,
                "loads": ["import numpy"] if "numpy" in code else [],
                "bound": [sorted(bound_by(text)) for text in tests.texts],
                "left": [sorted(left_by(text)) for text in tests.texts],
                "constants": constants(tests),
            }
        two_users = self._two_users and program is self._apart
        run = await self._run(program, json.dumps(asked).encode(), self.config.timeout_seconds, two_users=two_users)
        judged = signed_lines(run.stdout, key)
        silence = ("", run.detail or f"the tests ended with code {run.return_code}")
        verdicts = [judged.get(str(index), silence) for index in range(len(texts))]
        if verdicts[0][1].startswith(SETUP_FAILS):
            if not code:
                raise TestsError(verdicts[0][1])
            await self._judged(program, "", tests, texts)
        return [Outcome(passed=said == "passed", why=told) for said, told in verdicts]

    async def _pairs(self, code: str, pairs: Sequence[InputOutput]) -> list[Outcome]:
        """Run input/output pairs sequentially, so that a hanging reply occupies one slot, and only until the timeout
        for all.

        Only the run time that the sandbox reports counts: waiting for a slot is not charged to the reply.
        """
        left, outcomes = self.config.pairs_timeout_seconds, []
        for pair in pairs:
            if left <= 0:
                outcomes.append(Outcome(passed=False, why="the time for all pairs was over before it"))
                continue
            seconds = min(self.config.timeout_seconds, left)
            run = await self._run(code, pair.stdin.encode(errors="replace"), seconds)
            left -= seconds if run.ending is TerminationReason.TIME else run.seconds
            outcomes.append(printed(run, pair.stdout))
        return outcomes

    async def _run(self, code: str, stdin: bytes, seconds: float, *, two_users: bool = False) -> ProgramResult:
        program = Program(
            code=code,
            stdin=stdin,
            wall_seconds=seconds,
            memory_bytes=self.config.memory_mb * MIB,
            two_users=two_users,
        )
        run = await self._runner.run(program)
        if run.ending is TerminationReason.REFUSED:
            raise SandboxBroken(f"the sandbox does not take the program: {run.detail}")
        return run


def both(apart: Outcome, beside: Outcome) -> Outcome:
    """The result of a test that passes apart from the code, and ran beside it too."""
    return apart if beside.passed else Outcome(passed=False, why=f"in one Python with the code: {beside.why}")


def signed_lines(stdout: str, key: str) -> dict[str, tuple[str, str]]:
    """The judge's result for each test, by index: passed or failed, and why. The code may write to the same stream;
    lines without a valid signature are ignored."""
    found = {}
    for signed, told in SIGNED.findall(stdout):
        if secrets.compare_digest(signed, signature(key, told)):
            index, said, *why = told.split(" ", 2)
            found[index] = (said, "".join(why))
    return found


def printed(run: ProgramResult, wanted: str) -> Outcome:
    """Whether a program exited normally and printed the expected output."""
    if not run.succeeded:
        return Outcome(passed=False, why=run.detail or f"the program ended with code {run.return_code}")
    right = _lines(run.stdout) == _lines(wanted)
    return Outcome(passed=right, why="" if right else "it prints something else")


def of_the_code(tests: Asserts) -> tuple[str, ...]:
    """The names that come from the code."""
    return names_of_the_code(tests.texts, tests.setup, tests.entry_point, tests.names)


def kept_from(code: str, tests: Asserts) -> str:
    """What to know where a reply defines a name that tests use and that Python has too; empty where it does not."""
    names = names_of_python(tests.texts, tests.setup, tests.entry_point, tests.names)
    defined = [name for name in names if re.search(rf"^(?:(?:async )?def|class) {name}\b", code, re.MULTILINE)]
    named = ", ".join(defined)
    return f"; to the tests {named} is Python's own, unless reward.code.names lists it" if named else ""


def in_words(outcomes: Sequence[Outcome], how: str = "", *, from_the_code: Sequence[str] = ()) -> str:
    """A summary: how many tests passed, how they ran where that is not as usual, which names were taken from the code
    without the row saying so, why the first failing test failed, and how many may need trust."""
    told = f"{sum(outcome.passed for outcome in outcomes)} of {len(outcomes)} tests pass"
    failed = next(((place, outcome) for place, outcome in enumerate(outcomes, 1) if not outcome.passed), None)
    why = f"; test {failed[0]}: {failed[1].why}"[:400] if failed and failed[1].why else ""
    names = f"; from the code: {', '.join(from_the_code)}"[:200] if from_the_code else ""
    needing = sum(NEEDS_TRUST in outcome.why for outcome in outcomes)
    needs = (
        f"; {needing} of the tests may need reward.code.tests: trusting" if needing and NEEDS_TRUST not in why else ""
    )
    return escape_to_line(f"{told}{how}{names}{why}{needs}")


def make_code_scorer(config: CodeRewardConfig) -> CodeScorer:
    """The scorer that `config` describes. Nothing is started before `start`."""
    return CodeScorer(config, make_runner(config))


def make_runner(config: CodeRewardConfig) -> ProgramRunner:
    """A runner for the configured sandbox server, else for this process's sandbox."""
    if config.url:
        at_once = config.max_concurrent_requests
        seconds = max(QUEUE_SECONDS, at_once * config.timeout_seconds)  # were each of ours to use all of its
        remote = RemoteSandbox(config.url, token_from(config.token_env), seconds)
        return InTurn(remote, at_once, seconds)
    limits = SandboxLimits(wall_seconds=config.timeout_seconds, memory_bytes=config.memory_mb * MIB)
    queue = Queue(runs=config.max_concurrent_runs, waiting=1_000_000, wait_seconds=WAIT_SECONDS)
    return Sandbox(limits, queue, python=config.python, allow_rlimits=config.allow_rlimits)


def _lines(text: str) -> list[str]:
    """Lines without trailing blanks, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
