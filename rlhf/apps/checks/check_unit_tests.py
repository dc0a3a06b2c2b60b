"""`rlhf check` reads the unit tests of local rows, runs the data set's own solutions, and looks for modules."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from rlhf.data.columns import Row
from rlhf.data.sources import local_files, read_rows
from rlhf.recipe.schema import Recipe
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.read_tests import PythonTests, TestsError, read_tests, solution_of
from rlhf.reward.code.scoring import CodeScorer, make_runner
from rlhf.sandbox.program import Program
from rlhf.types import Scored

LOOKED_AT, SOLVED = 1000, 100
"""Number of rows of a local data set whose unit tests are read, and of those whose solutions are run."""
SHOWN = 3
IMPORTED = re.compile(r"^__import__\('(\w+)", re.MULTILINE)
"""A module that tests import, in their set-up."""
FIND = "import importlib.util\nfor name in {!r}:\n    print(name if importlib.util.find_spec(name) is None else '')\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """Findings of `check` in a row: its place, why it trusts the code or is unusable, why its own solution fails, and
    the modules that its tests import."""

    where: str
    trusting: str = ""
    unusable: str = ""
    unsolved: str = ""
    modules: frozenset[str] = frozenset()


def describe_unit_tests(recipe: Recipe) -> list[str]:
    """Describe how the reward `code` runs the rows' tests: count rows that trust the code, that are unusable, and that
    the data set's own solution fails, and name modules that the sandbox lacks."""
    local = [one for one in recipe.data.train_sets.values() if one.path and local_files(one)]
    rows = [placed for one in local for placed in islice(read_rows(one), LOOKED_AT)]
    configs = [scorer.code for scorer in recipe.reward.scorers.values() if scorer.kind == "code"]
    return [line for config in configs for line in asyncio.run(_described(rows, config))]


async def _described(rows: Sequence[tuple[str, Row]], config: CodeRewardConfig) -> list[str]:
    if not rows:
        return ["not read: only rows of local files are"]
    found = await _looked_at(rows, config)
    verb = "are refused: they trust" if config.trusting == "refuse" else "trust"
    trusting, unusable = ([row for row in found if row.trusting], [row for row in found if row.unusable])
    line = f"{len(trusting):,} of {len(rows):,} {'row' if len(rows) == 1 else 'rows'} {verb} the code"
    line += f", the first because {trusting[0].trusting}" if trusting else ""
    line += f"; {len(unusable):,} cannot be used, the first ({unusable[0].where}) because " if unusable else ""
    lines = [line + (unusable[0].unusable if unusable else "")]
    if config.solution_column:
        unsolved = [row for row in found if row.unsolved]
        shown = "; ".join(f"{row.where}: {row.unsolved}" for row in unsolved[:SHOWN])
        solved = min(len(rows), SOLVED)
        lines.append(f"{len(unsolved):,} of {solved:,} rows fail their own solution" + (f": {shown}" if shown else ""))
    needed = Counter(module for row in found for module in row.modules if module not in sys.stdlib_module_names)
    if lacking := await _lacking(sorted(needed), config):
        named = ", ".join(f"{module} ({needed[module]:,})" for module in lacking)
        mend = "install it on the server" if config.url else "name one that has it by reward.code.python"
        lines.append(f"the sandbox's Python lacks what rows import: {named}; {mend}")
    return lines


async def _looked_at(rows: Sequence[tuple[str, Row]], config: CodeRewardConfig) -> list[LookedAt]:
    """Read the rows' tests; the solutions of the first run, and decide how their tests do."""
    scorer = CodeScorer(config)
    plain = CodeScorer(config.model_copy(update={"solution_column": None, "trusting": "allow"}))
    if not config.solution_column:
        return [_read(where, row, config) for where, row in rows]
    await scorer.start()
    await plain.start()
    try:
        first = [await _solved(where, row, scorer, plain) for where, row in rows[:SOLVED]]
    finally:
        await scorer.close()
        await plain.close()
    return [*first, *(_read(where, row, config) for where, row in rows[SOLVED:])]


def _read(where: str, row: Row, config: CodeRewardConfig) -> LookedAt:
    try:
        tests = read_tests(row, config)
    except TestsError as error:
        return LookedAt(where=where, unusable=str(error))
    if not isinstance(tests, PythonTests):
        return LookedAt(where=where)
    return LookedAt(where=where, trusting=tests.why, modules=frozenset(IMPORTED.findall(tests.setup)))


async def _solved(where: str, row: Row, scorer: CodeScorer, plain: CodeScorer) -> LookedAt:
    """Run the solution of a row. If it fails, Python tests are unusable: nothing says how they are to run."""
    read, unusable = _read(where, row, scorer.config), ""
    if read.unusable:
        return read
    try:
        decided = await scorer.tests_of(row)
        if isinstance(decided, PythonTests):
            return replace(read, trusting=decided.why)
    except TestsError as error:
        unusable = str(error)
    failed = partial(replace, read, trusting="", unusable=unusable)
    try:
        solution = solution_of(row, scorer.config)
    except TestsError as error:
        return failed(unsolved=str(error))
    score = await plain.score(f"```python\n{solution}\n```", row)
    passes = isinstance(score, Scored) and score.value == 1.0
    return failed(unsolved=unusable if passes else score.detail)


async def _lacking(modules: Sequence[str], config: CodeRewardConfig) -> list[str]:
    """Return the modules that the Python of the sandbox does not have."""
    if not modules:
        return []
    runner = make_runner(config)
    await runner.start()
    try:
        run = await runner.run(Program(code=FIND.format(list(modules)), wall_seconds=config.timeout_seconds))
    finally:
        await runner.close()
    return run.stdout.split()
