"""A Python interpreter as a tool. The code runs in a separate runner, for instance the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlhf.config import load_piece
from rlhf.env.tool_use import Handled, ToolUseEnvironment, shortened, text_argument, text_tool

PYTHON = text_tool("python", "Runs a Python program and shows what it prints.", "code", "the program")


class PythonToolEnvironment(ToolUseEnvironment):
    """Asks the task's question, with a Python tool. The function `runner` runs a program within its own limits, and
    returns its output. The policy reads `longest` characters of that. Raises `ConfigError`."""

    def __init__(self, *, runner: str, longest: int = 4000, score: str | None = None) -> None:
        self._run_code: Callable[[str], str] = load_piece(runner, "runner")
        self._longest = longest
        super().__init__(
            "python", "A question, and Python to work it out", [Handled(tool=PYTHON, run=self._run)], score
        )

    def _run(self, arguments: Mapping[str, Any]) -> str:
        output = self._run_code(text_argument(arguments, "code")).strip()
        return shortened(output, self._longest) or "(nothing was printed)"
