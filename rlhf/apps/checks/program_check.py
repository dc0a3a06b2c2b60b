"""`rlhf reward check` for unit tests finds incorrect programs that pass some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rlhf.apps.arguments import recipe_if_named
from rlhf.apps.checks.hostile_programs import HostileProgram, hostile_programs
from rlhf.data.columns import Row
from rlhf.data.sources import load_tasks
from rlhf.errors import DataError
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.read_tests import PythonTests, Tests, TestsError, read_tests
from rlhf.reward.code.scoring import CodeScorer
from rlhf.types import Scored, Task

EXAMPLE = ("assert add(1, 2) == 3", "assert add(-1, 8) == 7", "assert abs(add(0.5, 2) - 2.5) < 1e-9")
ROWS = 3
"""Number of rows whose tests are attacked."""


def first_tasks(name: str, overrides: Sequence[str]) -> list[Task]:
    """Return the first training tasks of a recipe; none if no recipe is named."""
    recipe = recipe_if_named(name, overrides)
    sets = recipe.data.train_sets.values() if recipe else ()
    return [task for dataset in sets for task in load_tasks(dataset)[:ROWS]][:ROWS]


def program_check(
    config: CodeRewardConfig, rows: Sequence[Row], programs: Mapping[str, HostileProgram] | None = None
) -> int:
    """Print the scores that the tests of `rows`, else of an example, give to hostile programs; return 1 if one is above
    0. Raises `UserError`, also for a row without tests."""
    rows = rows or [{config.tests_column: list(EXAMPLE), config.entry_point_column or "entry_point": "add"}]
    for place, row in enumerate(rows, 1):
        try:
            print(f"tests of row {place}: {described_tests(read_tests(row, config))}")
        except TestsError as error:
            raise DataError(f"row {place}: {error}") from None
    programs = hostile_programs() if programs is None else programs
    best = asyncio.run(_best_scores(CodeScorer(config), programs, rows))
    for name, program in programs.items():
        print(f"{name:<36}{best[name]:<10.3g}{f'ACCEPTED: {program.advice}' if best[name] > 0 else ''}".rstrip())
    accepted = sum(worth > 0 for worth in best.values())
    print(f"\n{accepted} of {len(best)} hostile programs are accepted")
    return 1 if accepted else 0


def described_tests(tests: Tests) -> str:
    """Describe how a row's tests run, in one line."""
    if not isinstance(tests, PythonTests):
        return f"{len(tests)} pairs of input and output"
    if tests.form == "script":
        return f"in the code's process, where it can replace what they check: {tests.why}"
    return f"{sum(is_test for _, is_test in tests.steps)}, apart from the code"


async def _best_scores(
    scorer: CodeScorer, programs: Mapping[str, HostileProgram], rows: Sequence[Row]
) -> dict[str, float]:
    """Return the highest score of each program, which has the names that a row's tests take from the code."""
    tests = [read_tests(row, scorer.config) for row in rows]
    names = [one.names if isinstance(one, PythonTests) else () for one in tests]
    best = {}
    try:
        await scorer.start()
        for name, program in programs.items():
            replies = [f"```python\n{program.naming(own)}\n```" for own in names]
            scores = await asyncio.gather(*map(scorer.score, replies, rows))
            best[name] = max(score.value if isinstance(score, Scored) else 0.0 for score in scores)
        return best
    finally:
        await scorer.close()
