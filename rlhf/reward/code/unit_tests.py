"""Parse a task's tests from the formats that datasets use."""

from __future__ import annotations

import ast
import builtins
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeGuard

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.constants import constants_of, targets_of
from rlhf.reward.code.names import names_of_the_code, unknown_names
from rlhf.reward.code.reached import Definition, asserts, checks, names_reached, only_reached
from rlhf.reward.code.test_runner import NotRunnable, as_run
from rlhf.sandbox.limits import SandboxLimits

Row = Mapping[str, Any]
OUTPUT_BYTES = SandboxLimits().output_bytes
FUTURE = re.compile(r"^from __future__ import [^(\n]+$", re.MULTILINE)
"""What Python has at the start only."""
ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\(\))?(\.[A-Za-z_]\w*)*")
"""A function, or a method: `two_sum`, `Solution().twoSum`."""


class TestsError(Exception):
    """The tests of a row cannot be used."""

    __test__ = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOutput:
    """The standard input of a program, and the output that it must print."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asserts:
    """Pieces of Python, run in order; each is a test, and passes when it queries the code, runs one of the asserts that
    it holds, and raises nothing.
    `entry_point` is the name of the tested function, where the row has one; `setup` runs before the tests and is not
    part of the code."""

    texts: tuple[str, ...]
    entry_point: str | None = None
    names: tuple[str, ...] = ()
    """Names that may come from the code besides the entry point; without an entry point, names that the tests do not
    bind do too."""
    setup: str = ""


Tests = Asserts | Sequence[InputOutput]


def read_tests(row: Row, config: CodeRewardConfig) -> Tests:
    """The tests in the row's column. Raises `TestsError`."""
    column = config.tests_column
    value = _from_json(row.get(column))
    if value is None:
        raise TestsError(f"the row has no tests in column {column!r}")
    if _holds_pairs(value):
        pairs = _pairs(value)
        return pairs if pairs else _none(column)
    tested = _entry_point(row, config.entry_point_column)
    setup = _setup(row, config.setup_column)
    texts = _asserts(value, tested)
    if not texts:
        _none(column)
    entry_point = tested and _module_or_name(tested, texts)
    if setup and not entry_point and names_of_the_code((), setup, None, ()):
        texts, setup = (f"{setup}\n{texts[0]}", *texts[1:]), ""  # it uses the code, which has to be there
    tests = Asserts(texts=_asking(texts), entry_point=entry_point, names=config.names, setup=setup)
    if not any(checks(node) for text in (*tests.texts, setup) for node in ast.walk(_parsed(text))):
        raise TestsError("nothing in the tests asserts or raises: any code that runs would pass")
    unknown = unknown_names(tests.texts, setup, entry_point, config.names)
    if config.tests == "values" and unknown:
        raise TestsError(
            f"the tests use {', '.join(unknown)}, and hold no such names: reward.code.setup_column names a column that "
            f"does, reward.code.names those that are the code's"
        )
    return tests


def _none(column: str) -> NoReturn:
    raise TestsError(f"column {column!r} holds no test")


def _from_json(value: Any) -> Any:
    """A list or mapping that a dataset stores as JSON text; other text is Python."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _holds_pairs(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, Mapping) for one in value)


def _pairs(value: Any) -> list[InputOutput]:
    rows = [value] if isinstance(value, Mapping) else value
    if any("fn_name" in one or one.get("testtype") == "functional" for one in rows):
        raise TestsError("the pairs are calls of a function, not input and output of a program: write them as asserts")
    if isinstance(value, Mapping):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise TestsError("tests of the form {inputs, outputs} need two lists of one length")
        value = [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]
    if not all(isinstance(one.get(key), str) for one in value for key in ("input", "output")):
        raise TestsError("a pair of input and output needs both, as text")
    if any(len(one["output"].encode(errors="replace")) > OUTPUT_BYTES for one in value):
        raise TestsError(f"an output has more than the {OUTPUT_BYTES} bytes that the sandbox keeps")
    return [InputOutput(stdin=one["input"], stdout=one["output"]) for one in value]


def _asserts(value: Any, entry_point: str | None) -> tuple[str, ...]:
    """The tests of a text, or of a list of texts. A `check` is called with the `entry_point`."""
    if isinstance(value, str):
        return tuple(_split(_run([_parsed(value)], entry_point)[0]))
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise TestsError(f"tests are text, a list of texts, or pairs of input and output, not {type(value).__name__}")
    texts = [_parsed(one) for one in value]
    before = [list(text.body) for text in texts]
    runs = [[statement for statement, _ in run] for run in _run(texts, entry_point)]
    return tuple(one if run == body else _text(run) for one, body, run in zip(value, before, runs, strict=True))


def _run(texts: list[ast.Module], entry_point: str | None) -> list[list[tuple[ast.stmt, bool]]]:
    called = any(isinstance(one, ast.Name) and one.id == "check" for text in texts for one in ast.walk(text))
    if entry_point and not called:
        of_python = _name_of(entry_point) in dir(builtins)
        call = f"import solution\ncheck(solution.{entry_point})" if of_python else f"check({entry_point})"
        for text in texts:
            text.body += ast.parse(call).body if any(map(_is_check, text.body)) else []
    try:
        return as_run(texts)
    except NotRunnable as reason:
        raise TestsError(f"the tests cannot be run: {reason}") from None
    except ValueError as error:
        raise _not_written_anew(error) from None


def _is_check(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef) and statement.name == "check"


def _setup(row: Row, column: str | None) -> str:
    if column is None:
        return ""
    text = row.get(column)
    if not isinstance(text, str):
        raise TestsError(f"column {column!r} holds no set-up")
    if tests := [one.name for one in _parsed(text).body if _is_test(one) and asserts(one)]:
        raise TestsError(f"the set-up defines {tests[0]}, which asserts, and only tests are run: put it into the tests")
    return text


def with_prefix(code: str, row: Row, config: CodeRewardConfig) -> str:
    """The reply's code behind what it continues. Raises `TestsError`."""
    if config.code_prefix_column is None:
        return code
    text = row.get(config.code_prefix_column)
    if not isinstance(text, str):
        raise TestsError(f"column {config.code_prefix_column!r} holds no code")
    _parsed(text)
    return "\n".join([*FUTURE.findall(code), text, FUTURE.sub("", code)])


def _is_test(statement: ast.stmt) -> TypeGuard[Definition]:
    return isinstance(statement, Definition) and (
        statement.name.startswith(("test", "Test"))
        or (isinstance(statement, ast.ClassDef) and any(ast.unparse(of).endswith("TestCase") for of in statement.bases))
    )


def _asking(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Join pieces that only prepare (imports, definitions, constants) with the next piece that does more; alone they
    are not tests. Raises `TestsError` where all pieces only prepare: they would pass with any code."""
    tests: list[str] = []
    before: list[str] = []
    for text in texts:
        before.append(text)
        if not all(map(_only_prepares, _parsed(text).body)):
            tests.append("\n".join(before))
            before = []
    if not tests:
        raise TestsError("the tests ask the code for nothing, they only define and import")
    return (*tests[:-1], "\n".join([tests[-1], *before]))


def reached_by(tests: Asserts, passed: Sequence[bool]) -> tuple[str, ...]:
    """The texts without the tests that have not `passed`: of these their imports are left, and what the others run."""
    trees, setup = [ast.parse(text) for text in tests.texts], ast.parse(tests.setup)
    run = [tree for tree, has_passed in zip(trees, passed, strict=True) if has_passed]
    constants = [
        (name, one) for of_text in constants_of([*trees, setup]) for one in of_text for name in targets_of(one)
    ]
    said = names_reached([*run, setup], trees, constants)
    pairs = zip(tests.texts, trees, strict=True)
    return tuple(_left(text, tree, only_reached(tree, said, constants, runs=tree in run)) for text, tree in pairs)


@lru_cache(maxsize=1024)
def constants(tests: Asserts) -> tuple[str, ...]:
    """What of each text sets constants."""
    empty = ast.Module(body=[], type_ignores=[])
    *found, _ = constants_of([ast.parse(text) for text in (*tests.texts, tests.setup)])
    return tuple(_left("", empty, of_text) for of_text in found)


def _left(text: str, tree: ast.Module, kept: Iterable[ast.stmt]) -> str:
    """What is kept of a text; nothing where it cannot be written anew."""
    if (body := list(kept)) == tree.body:
        return text
    try:
        return _text(body)
    except TestsError:
        return ""


def _only_prepares(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
            return True
        case ast.Expr(value=value) | ast.Assign(value=value):
            return not any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(value))
        case _:
            return False


def _split(statements: list[tuple[ast.stmt, bool]]) -> list[str]:
    """One test for each top-level assert and each test function, with the statements before it; statements after the
    last join it."""
    pieces: list[list[ast.stmt]] = [[]]
    for statement, is_test in statements:
        pieces[-1].append(statement)
        if is_test or isinstance(statement, ast.Assert):
            pieces.append([])
    *tests, rest = pieces
    if tests:
        tests[-1] += rest
    elif rest:
        tests = [rest]
    return [_text(test) for test in tests]


def _text(statements: Iterable[ast.stmt]) -> str:
    try:
        return ast.unparse(ast.Module(body=list(statements), type_ignores=[]))
    except RecursionError:
        raise TestsError("a test is nested too deeply") from None
    except ValueError as error:
        raise _not_written_anew(error) from None


def _not_written_anew(error: ValueError) -> TestsError:
    """Of what Python parses and cannot unparse: some f-strings before 3.12, a number of thousands of digits."""
    return TestsError(f"a test cannot be divided: {error}")


def _parsed(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):  # about the author of the tests
            compile(text, "tests", "exec", dont_inherit=True)
            return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise TestsError(f"a test is no Python: {error}") from None
    except RecursionError:
        raise TestsError("a test is nested too deeply") from None


def _entry_point(row: Row, column: str | None) -> str | None:
    if column is None:
        return None
    name = row.get(column)
    if not isinstance(name, str) or not ENTRY_POINT.fullmatch(name):
        raise TestsError(f"column {column!r} holds no name of a function")
    return name


def _name_of(entry_point: str) -> str:
    return entry_point.partition(".")[0].removesuffix("()")


def _module_or_name(entry_point: str, texts: tuple[str, ...]) -> str:
    """The name that comes from the code. A function that is named as one of Python's is reached through the module
    where it is handed to `check`: in the tests the name is Python's."""
    through_the_module = any(f"check(solution.{entry_point})" in text for text in texts)
    return "solution" if through_the_module else _name_of(entry_point)
