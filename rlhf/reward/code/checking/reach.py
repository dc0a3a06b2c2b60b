"""Which tests depend on the code."""

from __future__ import annotations

import ast

from rlhf.reward.code.checking.completeness import RESULT
from rlhf.reward.code.checking.counting import names_in

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Reach:
    """Which tests depend on the code: those that query it, or that use a variable set or used by such a test."""

    def __init__(self, tests: list[ast.Module]) -> None:
        self._defined = {one.name: one for test in tests for one in test.body if isinstance(one, DEFINITIONS)}
        set_up = [one for one in self._defined.values() if _sets_up(one)]
        self._set = {one.name for one in set_up} | {
            name.id for test in tests for name in names_in(test) if isinstance(name.ctx, ast.Store)
        }
        self._set -= {RESULT}
        self._reached: set[str] = set()

    def uses_the_code(self, test: ast.Module, *, asked: bool) -> bool:
        """Whether the test depends on the code; `asked` is whether it queried the code."""
        mentioned = {node.id for node in self.run_by(test) if isinstance(node, ast.Name)} & self._set
        used = asked or bool(mentioned & self._reached)
        self._reached |= mentioned if used else set()
        return used

    def run_by(self, test: ast.Module) -> list[ast.AST]:
        """The nodes that a test runs: not those of definitions that it does not reach, but those of other tests'
        definitions that it does. Of a class of tests it runs the methods that it names."""
        ahead: list[ast.AST] = [one for one in test.body if not isinstance(one, DEFINITIONS)]
        nodes, left = [], dict(self._defined)
        for part in ahead:  # grows while it is read
            inside = list(ast.walk(part))
            nodes += inside
            said = {node.attr for node in inside if isinstance(node, ast.Attribute)}
            said |= {str(node.value) for node in inside if isinstance(node, ast.Constant)}
            for name in {node.id for node in inside if isinstance(node, ast.Name)} & set(left):
                one = left.pop(name)
                ahead += [inner for inner in one.body if not _is_another_test(inner, said)] if _is_class(one) else [one]
        return nodes


def _sets_up(node: ast.stmt) -> bool:
    """Whether it is a class of tests, whose tests may use what was asked when it was set up."""
    return isinstance(node, ast.ClassDef) and any(getattr(one, "name", "") == "setUpClass" for one in node.body)


def _is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


def _is_another_test(node: ast.stmt, said: set[str]) -> bool:
    return isinstance(node, DEFINITIONS) and node.name.startswith("test") and node.name not in said
