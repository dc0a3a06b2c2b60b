"""A Python interpreter as a tool. The code runs in a separate runner, for instance the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rlhf.config import load_piece
from rlhf.env.tool_use import Handled, ToolUseEnvironment, shortened, text_argument, text_tool

PYTHON = text_tool("python", "Runs a Python program and shows what it prints.", "code", "the program")


class CodeRunner(Protocol):
    """Runs a program of the policy within its own limits of time and memory, and returns its output, and how it ended
    if it did not exit normally. It raises only if the runner itself fails."""

    def __call__(self, code: str) -> str: ...


class PythonToolEnvironment(ToolUseEnvironment):
    """Asks the task's question, with a Python tool. `runner` names the function `module:function` that runs programs.

    The policy reads the beginning and the end of the result, `longest` characters in all. Raises `ConfigError`.
    """

    def __init__(self, *, runner: str, longest: int = 4000, score: str | None = None) -> None:
        self._run_code: CodeRunner = load_piece(runner, "runner")
        self._longest = longest
        super().__init__(
            "python", "A question, and Python to work it out", [Handled(tool=PYTHON, run=self._run)], score
        )

    def _run(self, arguments: Mapping[str, Any]) -> str:
        output = self._run_code(text_argument(arguments, "code")).strip()
        return shortened(output, self._longest) or "(nothing was printed)"
