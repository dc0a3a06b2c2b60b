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
from typing import Any, Literal

from rlhf.data.columns import Row, column_value, from_json
from rlhf.reward.code.choose_form import FormDecision, Function, calls_any, free_names, is_case
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.sandbox.program import SandboxLimits

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

NEEDS_PYTEST = re.compile(r"^\s*(@(pytest\.)?(mark|fixture)\b|def (setup|teardown)_)", re.MULTILINE)
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
    __test__ = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTests:
    """Tests in Python. `steps` are texts that run in order, and whether each is a test; `names` come from the code, in
    whose process they run if there is a `why`, as `together` says in its namespace."""

    steps: tuple[tuple[str, bool], ...]
    names: tuple[str, ...]
    why: str = ""
    setup: str = ""
    together: bool = True

    @property
    def form(self) -> Literal["values", "script"]:
        """`script` in the code's process, else `values`."""
        return "script" if self.why else "values"


Pairs = Sequence[tuple[str, str]]
"""What a program reads on its standard input, and what it must print."""
Tests = PythonTests | Pairs


def read_tests(row: Row, config: CodeRewardConfig) -> Tests:
    """Return the tests in the row's column. Raises `TestsError`."""
    value, column = _tests_in(row, config.tests_column), config.tests_column
    if value is None or value in ("", [], {}):
        raise TestsError(f"the row has no tests in column {column!r}; its columns are {', '.join(map(str, row))}")
    if isinstance(value, str) and value.startswith("eJ") and value.isascii() and " " not in value:
        raise TestsError(f"column {column!r} holds compressed tests: decode base64, decompress, and write them as JSON")
    entry_point = column_value(row, config.entry_point_column) if config.entry_point_column else None
    if config.entry_point_column and not (isinstance(entry_point, str) and ENTRY_POINT.fullmatch(entry_point)):
        raise TestsError(f"column {config.entry_point_column!r} does not hold the name of a function")
    values = value if isinstance(value, list) else [value]
    if all(isinstance(case, Mapping) for case in values):
        return _pairs_or_calls(values, row, entry_point)
    if not all(isinstance(text, str) for text in values):
        raise TestsError(f"tests must be Python, pairs of input and output, or calls, not {type(value).__name__}")
    try:
        setup, _ = (text_of(row, column) for column in (config.setup_column, config.code_prefix_column))
        return _python_tests(tuple(values), values is value, entry_point, setup, config.names)
    except (SyntaxError, ValueError) as error:
        raise TestsError(f"a test is not valid Python: {error}") from None
    except (RecursionError, MemoryError):
        raise TestsError("a test is nested too deeply") from None


def _tests_in(row: Row, column: str) -> Any:
    """Return the value of the tests' column. `inputs` belongs to the row's `outputs` (rStar-Coder)."""
    value, place = from_json(column_value(row, column)), column.removesuffix("inputs")
    outputs = from_json(column_value(row, f"{place}outputs")) if place != column else None
    if outputs is None:
        return value
    function, kind = (column_value(row, f"{place}{name}") for name in ("func_name", "class_name"))
    return {"inputs": value, "outputs": outputs, "fn_name": f"{kind}().{function}" if kind and function else function}


def text_of(row: Row, column: str | None) -> str:
    """Return the Python in a column, also from a list of lines; empty for no column. Raises `TestsError`."""
    value = column_value(row, column) if column else ""
    text = "\n".join(map(str, value)) if isinstance(value, list) else value
    if not isinstance(text, str):
        raise TestsError(f"column {column!r} does not hold Python")
    _parsed(text)
    return text


def with_prefix(code: str, row: Row, config: CodeRewardConfig) -> str:
    """Return the reply's code after the code that it continues. Raises `TestsError`."""
    prefix = text_of(row, config.code_prefix_column)
    return "\n".join([*FUTURE.findall(code), prefix, FUTURE.sub("", code)]) if prefix else code


def solution_of(row: Row, config: CodeRewardConfig) -> str:
    """Return the data set's own solution, the first of several. Raises `TestsError`."""
    value = from_json(column_value(row, config.solution_column or ""))
    solution = value[0] if isinstance(value, list) and value else value
    if not isinstance(solution, str):
        raise TestsError(f"column {config.solution_column!r} does not hold a solution")
    return solution


def _pairs_or_calls(values: Sequence[Any], row: Row, entry_point: str | None) -> Tests:
    cases = [case for value in values for case in _cases(value, row, entry_point)]
    pairs = [(given, wanted) if called else (_joined(given), _joined(wanted)) for called, given, wanted in cases]
    if len({function for function, _, _ in cases}) != 1:
        raise TestsError("the column does not hold pairs of one function")
    if function := cases[0][0]:
        return _calls(pairs, function)
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise TestsError("a pair of input and output needs both, as text")
    if any(len(wanted.encode(errors="replace")) > OUTPUT_BYTES for _, wanted in pairs):
        raise TestsError(f"an output has more than the {OUTPUT_BYTES} bytes that the sandbox keeps")
    return pairs


def _joined(lines: Any) -> Any:
    return "\n".join(lines) if isinstance(lines, list) and all(isinstance(line, str) for line in lines) else lines


def _cases(value: Row, row: Row, entry_point: str | None) -> list[tuple[str | None, Any, Any]]:
    """Return the function that is called, or None for a program, with each input and output of a mapping."""
    is_call = bool(value.get("fn_name") or CALLS & {value.get("type"), value.get("testtype")})
    inputs, outputs = (value.get(f"{key}s", value.get(key)) for key in ("input", "output"))
    if inputs is None or outputs is None:
        raise TestsError(f"a mapping needs input and output, or lists of both, but has {', '.join(map(str, value))}")
    if "inputs" not in value and (not isinstance(inputs, list) or is_call):
        inputs, outputs = [inputs], [outputs]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise TestsError("inputs and outputs must be lists of equal length")
    in_metadata = [column_value(place, "metadata.func_name") for place in (value, row)]
    function = next(filter(None, (value.get("fn_name"), *in_metadata, entry_point)), None) if is_call else None
    if is_call and not (isinstance(function, str) and ENTRY_POINT.fullmatch(function)):
        raise TestsError("the calls do not name the function that they call")
    return [(function, given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]


def _calls(cases: Sequence[tuple[Any, Any]], function: str) -> PythonTests:
    """Return calls with JSON results, which some data sets put into a list of one, as tests in Python."""
    try:
        read = [([json.loads(line) for line in given.split("\n") if line.strip()], json.loads(wanted))
                if isinstance(given, str) else (given, wanted) for given, wanted in cases]  # fmt: skip
    except (ValueError, TypeError):
        raise TestsError("the arguments and results of calls must be JSON, one per line") from None
    either = " or _same(_answer, _wanted[0])"
    wrapped = all(isinstance(wanted, list) and len(wanted) == 1 for _, wanted in read)
    steps = []
    for given, wanted in read:
        arguments, expected = json.dumps(given if isinstance(given, list) else [given]), json.dumps(wanted)
        call = f"_answer, _wanted = {function}(*_json.loads({arguments!r})), _json.loads({expected!r})"
        steps.append((f"{call}\nassert _same(_answer, _wanted){either if wrapped else ''}", True))
    return PythonTests(steps=tuple(steps), names=(re.split(r"[(.]", function)[0],), setup=SAME)


@lru_cache(maxsize=1024)
def _python_tests(
    texts: tuple[str, ...], is_list: bool, entry_point: str | None, setup: str, listed: tuple[str, ...]
) -> PythonTests:
    if setup and not entry_point and free_names(_parsed(setup)):  # it uses the code, which must exist
        texts, setup = (f"{setup}\n{texts[0]}", *texts[1:]), ""
    trees = [_parsed(text) for text in (*texts, setup)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in froms}
    base = re.split(r"[(.]", entry_point)[:1] if entry_point else []
    free = [name for name in free_names(*trees) if name not in (*base, *listed)]
    imported = [alias.asname or alias.name for node in froms if node.module == "solution" for alias in node.names]
    names = [*base, *listed, *imported, *([] if entry_point else free)]
    why = f"they use {', '.join(free)} without defining it" if free and entry_point else ""
    together = "solution" not in modules
    if not names and together:
        called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        names, why = list(filter(vars(builtins).get, called)), "they call functions that are also Python's"
    steps = [step for text in texts for step in _steps(text, is_list, entry_point)]
    if any(map(NEEDS_PYTEST.search, texts)) or any(map(_takes_fixtures, trees)):
        why, modules = "they need pytest", modules | {"pytest"}
        imports = "from solution import *" if together else ""
        steps = [(PYTEST.format("\n\n".join((imports, *texts))), True)]
    if not any(is_test for _, is_test in steps) or not any(map(_decides, nodes)):
        raise TestsError("nothing in the tests asserts or raises: any code that runs would pass")
    if not names and together:
        raise TestsError("the tests never use the code")
    why = why or FormDecision(trees, set(names)).reason()
    imports_first = "".join(f"__import__({name!r})\n" for name in sorted(modules - {"solution"}))
    names = list(dict.fromkeys(names))
    return PythonTests(steps=tuple(steps), names=tuple(names), why=why, setup=imports_first + setup, together=together)


def _steps(text: str, is_whole: bool, entry_point: str | None) -> list[tuple[str, bool]]:
    """Cut a text into steps that run in order, and say of each whether it is a test: top-level statements that can
    fail, and calls of its test functions. An indivisible text becomes one step."""
    tree, lines = _parsed(text), re.split(r"\r\n|\r|\n", text)
    calls = list(_test_calls(tree, entry_point))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    deciding = {function.name for function in functions if any(map(_decides, ast.walk(function)))}
    deciding |= {function.name for function in functions if calls_any(function, deciding)}
    steps, read, decides = list[tuple[str, bool]](), 0, False
    for statement, behind in zip(tree.body, [*tree.body[1:], None], strict=True):
        end = statement.end_lineno or 0
        defines = isinstance(statement, Function | ast.ClassDef)
        decides |= not defines and (any(map(_decides, ast.walk(statement))) or calls_any(statement, deciding))
        if behind is None or behind.lineno > end:
            if not (calls and ast.unparse(statement).startswith(RUNNERS)):
                steps.append(("\n".join(lines[read:end]), decides))
            read, decides = end, False
    steps += [(call, True) for call in calls]
    return [("\n".join(step for step, _ in steps), any(is_test for _, is_test in steps))] if is_whole else steps


def _takes_fixtures(tree: ast.Module) -> bool:
    scopes: list[Any] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and not is_case(node))]
    functions = [(node, scope is not tree) for scope in scopes for node in scope.body if isinstance(node, Function)]
    takes = {node.name for node, in_class in functions if len(node.args.args) > in_class}
    return any(name.startswith("test") and not calls_any(tree, {name}) for name in takes)


def _decides(node: ast.AST) -> bool:
    named = node.attr if isinstance(node, ast.Attribute) else ""
    return isinstance(node, ast.Assert | ast.Raise) or named.startswith(("assert", "fail")) or named == "raises"


def _test_calls(tree: ast.Module, entry_point: str | None) -> Iterator[str]:
    """Yield calls of what a text defines as tests and does not call itself."""
    for node in tree.body:
        name = getattr(node, "name", "")
        if isinstance(node, ast.ClassDef) and (is_case(node) or name.startswith("Test")):
            methods = [part.name for part in node.body if isinstance(part, Function) and part.name.startswith("test")]
            yield from (CASE.format(name, of) if is_case(node) else f"{name}().{of}()" for of in methods)
        elif isinstance(node, Function) and not calls_any(tree, {name}):
            if name == "check":
                if not entry_point:
                    raise TestsError(
                        "nothing calls check: set reward.code.entry_point_column to the column with its argument"
                    )
                yield f"import solution as _solution\ncheck(_solution.{entry_point})"
            elif name.startswith("test"):
                is_async = isinstance(node, ast.AsyncFunctionDef)
                yield f"import asyncio\nasyncio.run({name}())" if is_async else f"{name}()"


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings(action="ignore"):
        warnings.filterwarnings("error", "assertion is always true")  # `assert (f(1) == 2, "no")`
        compile(text, "tests", "exec", dont_inherit=True)
        return ast.parse(text)
