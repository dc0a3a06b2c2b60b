"""Read a row's tests from the shapes that data sets use."""

from __future__ import annotations

import ast
import builtins
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.forms import Form, FormDecision, bound_names, calls_any, free_names, is_case, needs_pytest
from rlhf.sandbox.program import SandboxLimits

Row = Mapping[str, Any]
OUTPUT_BYTES = SandboxLimits().output_bytes
FUTURE = re.compile(r"^from __future__ import [^(\n]+$", re.MULTILINE)
ENTRY_POINT = re.compile(r"([A-Za-z_]\w*)(\(\))?(\.[A-Za-z_]\w*)*")
"""A function, or a method: `two_sum`, `Solution().twoSum`."""
CALLS = {"functional", "function_call"}
"""Types of cases that are calls of a function."""
RUNNERS = ("unittest.main(", "pytest.main(", "sys.exit(", "exit(", "quit(", "if __name__")
SAME = """
import json as _json, math as _math
def _same(answer, expected):
    if float in (type(answer), type(expected)) and {type(answer), type(expected)} <= {int, float}:
        return _math.isclose(answer, expected, rel_tol=1e-6, abs_tol=1e-6)
    if type(answer) in (list, tuple) and type(expected) is list:
        return len(answer) == len(expected) and all(map(_same, answer, expected))
    if type(answer) is dict is type(expected):
        return {*map(str, answer)} == {*expected} and all(_same(answer[key], expected[str(key)]) for key in answer)
    return type(answer) is type(expected) and answer == expected
"""
"""Set-up of tests that are calls with results: JSON has no tuples, and no keys but text."""

PYTEST = """
import pytest as _pytest
with open("test_row.py", "w") as _file:
    _file.write({!r})
assert _pytest.main(["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "test_row.py"]) == 0
"""
"""The test of a row that pytest runs."""
CASE = """
import unittest as _unittest
_result = _unittest.TestResult()
_unittest.TestSuite([{}({!r})]).run(_result)
assert _result.wasSuccessful() and not _result.skipped, (_result.failures + _result.errors)[0][1][-200:]
"""
"""The test that runs one method of a `unittest.TestCase` with its fixtures."""


class TestsError(Exception):
    """The tests of a row cannot be used."""

    __test__ = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOutput:
    """The standard input of a program, and the output that it must print."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTests:
    """Tests in Python. `steps` are texts that run in order, and whether each is a test; `names` come from the code.

    `needed`: names of which the code must define one, where Python has them too. `together`: tests and code share their
    names in a script. `why`: why the form is `script`."""

    steps: tuple[tuple[str, bool], ...]
    names: tuple[str, ...]
    form: Form = "values"
    why: str = ""
    setup: str = ""
    modules: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    together: bool = True


Tests = PythonTests | Sequence[InputOutput]


def read_tests(row: Row, config: CodeRewardConfig) -> Tests:
    """The tests in the row's column. Raises `TestsError`."""
    value, column = from_json(column_value(row, config.tests_column)), config.tests_column
    if value is None or value in ("", [], {}):
        raise TestsError(f"the row has no tests in column {column!r}")
    entry_point = column_value(row, config.entry_point_column) if config.entry_point_column else None
    if config.entry_point_column and not (isinstance(entry_point, str) and ENTRY_POINT.fullmatch(entry_point)):
        raise TestsError(f"column {config.entry_point_column!r} holds no name of a function")
    if isinstance(value, Mapping) or (isinstance(value, list) and isinstance(value[0], Mapping)):
        return _pairs_or_calls([value] if isinstance(value, Mapping) else value, row, entry_point)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TestsError(f"tests are Python, pairs of input and output, or calls, not {type(value).__name__}")
    setup, prefix = (text_of(row, named) for named in (config.setup_column, config.code_prefix_column))
    try:
        return _python_tests(tuple(texts), isinstance(value, str), entry_point, setup, prefix, config.names)
    except RecursionError:
        raise TestsError("a test is nested too deeply") from None


def column_value(row: Row, column: str) -> Any:
    """The value of a column. Dots lead into mappings, also into those that are text."""
    if column in row or "." not in column:
        return row.get(column)
    first, _, rest = column.partition(".")
    inner = from_json(row.get(first))
    return column_value(inner, rest) if isinstance(inner, Mapping) else None


def from_json(value: Any) -> Any:
    """A list or mapping that a data set stores as text, as JSON or as Python prints it; other text is Python."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        for read in (json.loads, ast.literal_eval):
            try:
                return read(value.strip())
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                continue
    return value


def text_of(row: Row, column: str | None) -> str:
    """Python in a column, also as a list of lines; empty for no column. Raises `TestsError`."""
    value = column_value(row, column) if column else ""
    text = "\n".join(map(str, value)) if isinstance(value, list) else value
    if not isinstance(text, str):
        raise TestsError(f"column {column!r} holds no Python")
    _parsed(text)
    return text


def with_prefix(code: str, row: Row, config: CodeRewardConfig) -> str:
    """The reply's code behind what it continues. Raises `TestsError`."""
    prefix = text_of(row, config.code_prefix_column)
    return "\n".join([*FUTURE.findall(code), prefix, FUTURE.sub("", code)]) if prefix else code


def solution_of(row: Row, config: CodeRewardConfig) -> str:
    """The data set's own solution, the first of several. Raises `TestsError`."""
    value = from_json(column_value(row, config.solution_column or ""))
    solution = value[0] if isinstance(value, list) and value else value
    if not isinstance(solution, str):
        raise TestsError(f"column {config.solution_column!r} holds no solution")
    return solution


def _pairs_or_calls(value: list[Any], row: Row, entry_point: str | None) -> Tests:
    cases = [case for one in value for case in _cases(one)]
    functions = {_function(case, row, entry_point) for case in cases}
    if len(functions) != 1:
        raise TestsError("the column holds no pairs, or pairs of several functions")
    if function := functions.pop():
        return _calls(cases, function)
    if not all(isinstance(case[key], str) for case in cases for key in ("input", "output")):
        raise TestsError("a pair of input and output needs both, as text")
    if any(len(case["output"].encode(errors="replace")) > OUTPUT_BYTES for case in cases):
        raise TestsError(f"an output has more than the {OUTPUT_BYTES} bytes that the sandbox keeps")
    return [InputOutput(stdin=case["input"], stdout=case["output"]) for case in cases]


def _cases(value: Any) -> list[dict[str, Any]]:
    """Mappings with one `input` and one `output` each, of lists of them."""
    if not isinstance(value, Mapping):
        raise TestsError("a pair of input and output is a mapping")
    inputs, outputs = (value.get(f"{key}s", value.get(key)) for key in ("input", "output"))
    if "inputs" not in value and (not isinstance(inputs, list) or _is_call(value)):
        inputs, outputs = [inputs], [outputs]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise TestsError("inputs and outputs must be two lists of one length")
    return [{**value, "input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]


def _is_call(case: Mapping[str, Any]) -> bool:
    return bool(case.get("fn_name") or CALLS & {case.get("type"), case.get("testtype")})


def _function(case: Mapping[str, Any], row: Row, entry_point: str | None) -> str | None:
    """The function that a case calls; None for a program that reads its input."""
    if not _is_call(case):
        return None
    about = [one for one in (from_json(case.get("metadata")), from_json(row.get("metadata"))) if isinstance(one, dict)]
    name = next(filter(None, (case.get("fn_name"), *(one.get("func_name") for one in about), entry_point)), None)
    if not isinstance(name, str) or not ENTRY_POINT.fullmatch(name):
        raise TestsError("the calls do not name the function that they call")
    return name


def _calls(cases: Sequence[Mapping[str, Any]], function: str) -> PythonTests:
    """Calls with results as tests in Python. JSON values are given as they are, or as text with one a line. Some data
    sets put each result into a list of one."""
    try:
        read = [([json.loads(line) for line in one["input"].split("\n") if line.strip()], json.loads(one["output"]))
                if isinstance(one["input"], str) else (one["input"], one["output"]) for one in cases]  # fmt: skip
    except (ValueError, TypeError):
        raise TestsError("the arguments and results of calls are JSON, one a line") from None
    wrapped = all(isinstance(expected, list) and len(expected) == 1 for _, expected in read)
    steps = []
    for given, expected in read:
        arguments, wanted = json.dumps(given if isinstance(given, list) else [given]), json.dumps(expected)
        call = f"_answer, _wanted = {function}(*_json.loads({arguments!r})), _json.loads({wanted!r})"
        either = " or _same(_answer, _wanted[0])" if wrapped else ""
        steps.append((f"{call}\nassert _same(_answer, _wanted){either}", True))
    return PythonTests(steps=tuple(steps), names=(re.split(r"[(.]", function)[0],), setup=SAME)


@lru_cache(maxsize=1024)
def _python_tests(
    texts: tuple[str, ...], is_one: bool, entry_point: str | None, setup: str, prefix: str, listed: tuple[str, ...]
) -> PythonTests:
    if setup and not entry_point and free_names(_parsed(setup)):  # it uses the code, which has to be there
        texts, setup = (f"{setup}\n{texts[0]}", *texts[1:]), ""
    trees = [_parsed(text) for text in texts]
    base = re.split(r"[(.]", entry_point)[0] if entry_point else ""
    bound = bound_names(*trees, _parsed(setup)) | {*listed, base}
    free = [name for name in free_names(*trees) if name not in bound]
    helpers = bound_names(_parsed(prefix)) if entry_point else set()
    if helpers.intersection(free):  # functions of HumanEval's prompt, say: the tests get their own
        setup, free = f"{prefix}\n{setup}", [name for name in free if name not in helpers]
    steps, all_trees = tuple(_steps(texts, is_one, entry_point)), [*trees, _parsed(setup)]
    nodes = [node for tree in all_trees for node in ast.walk(tree)]
    if not any(is_test for _, is_test in steps) or not any(map(_decides, nodes)):
        raise TestsError("nothing in the tests asserts or raises: any code that runs would pass")
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules = {str(name).partition(".")[0] for name in (*named, *(node.module for node in froms))}
    is_checked = any("_solution." in text for text, _ in steps)
    tested = [] if not base or (is_checked and hasattr(builtins, base)) else [base]
    imported = [alias.asname or alias.name for node in froms if node.module == "solution" for alias in node.names]
    names = tuple(dict.fromkeys((*tested, *listed, *imported, *([] if entry_point else free))))
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    of_python = () if names or is_checked or "solution" in modules else tuple(filter(vars(builtins).get, called))
    if not (names or is_checked or "solution" in modules or of_python):
        raise TestsError("the tests ask the code for nothing")
    why = f"they use {', '.join(free)}, which they do not define" if free and entry_point else ""
    if any(map(needs_pytest, trees)):
        why, modules = "they need pytest", modules | {"pytest"}
        imports = "" if "solution" in modules else "from solution import *"
        steps = ((PYTEST.format("\n\n".join((imports, *texts))), True),)
    why = why or ("they call functions that Python has too" if of_python else "")
    why = why or FormDecision(all_trees, set(names)).reason()
    return PythonTests(
        steps=steps,
        names=names,
        form="script" if why else "values",
        why=why,
        setup=setup,
        modules=tuple(sorted(modules - {"solution"})),
        needed=of_python,
        together="solution" not in modules,
    )


def _steps(texts: Sequence[str], is_one: bool, entry_point: str | None) -> Iterator[tuple[str, bool]]:
    """What runs in order, and whether it is a test: of one text each statement at its top level that decides something
    and each test function, of a list each text. What only prepares goes with the test behind it."""
    before: list[str] = []
    for text in texts:
        calls = list(_test_calls(_parsed(text), entry_point))
        pieces = list(_pieces(text, closed=bool(calls)))
        if is_one:
            if len(pieces) > 1 and not pieces[-1][1] and not calls:
                pieces[-2:] = [(f"{pieces[-2][0]}\n{pieces[-1][0]}", True)]
            yield from (*pieces, *((call, True) for call in calls))
            continue
        before += [*(piece for piece, _ in pieces), *calls]
        if calls or any(is_test for _, is_test in pieces):
            yield "\n".join(before), True
            before = []


def _pieces(text: str, *, closed: bool) -> Iterator[tuple[str, bool]]:
    """The statements of a text, cut behind each that decides something. `closed`: without main guards and runners."""
    tree, lines = _parsed(text), re.split(r"\r\n|\r|\n", text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    deciding = {one.name for one in functions if any(map(_decides, ast.walk(one)))}
    deciding |= {one.name for one in functions if calls_any(one, deciding)}
    piece: list[str] = []
    read = 0
    for statement in tree.body:
        first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])
        last = statement.end_lineno or first
        if not (closed and ast.unparse(statement).startswith(RUNNERS)):
            piece += lines[max(first - 1, read) : last]
            defines = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if not defines and (any(map(_decides, ast.walk(statement))) or calls_any(statement, deciding)):
                yield "\n".join(piece), True
                piece = []
        read = last
    if piece:
        yield "\n".join(piece), False


def _decides(node: ast.AST) -> bool:
    """Whether a node can fail a test."""
    named = node.attr if isinstance(node, ast.Attribute) else ""
    return isinstance(node, ast.Assert | ast.Raise) or named.startswith(("assert", "fail")) or named == "raises"


def _test_calls(tree: ast.Module, entry_point: str | None) -> Iterator[str]:
    """Calls of what a text defines as tests and does not call itself."""
    for node in tree.body:
        name = getattr(node, "name", "")
        if isinstance(node, ast.ClassDef) and (is_case(node) or name.startswith("Test")):
            methods = [one.name for one in node.body if getattr(one, "name", "").startswith("test")]  # type: ignore[attr-defined]
            yield from (CASE.format(name, of) if is_case(node) else f"{name}().{of}()" for of in methods)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not calls_any(tree, {name}):
            if name == "check":
                if not entry_point:
                    raise TestsError("nothing calls check: reward.code.entry_point_column names what it is called with")
                yield f"import solution as _solution\ncheck(_solution.{entry_point})"
            elif name.startswith("test"):
                is_async = isinstance(node, ast.AsyncFunctionDef)
                yield f"import asyncio\nasyncio.run({name}())" if is_async else f"{name}()"


def _parsed(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(text, "tests", "exec", dont_inherit=True)
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise TestsError(f"a test is no Python: {error}") from None
    except (RecursionError, MemoryError):
        raise TestsError("a test is nested too deeply") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts:
            raise TestsError(f"`assert {ast.unparse(node.test)}` holds always")
    return tree
