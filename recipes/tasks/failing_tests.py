"""Folders of three files with a failing test, for agents that edit files: tasks, and conversations for the warm-up."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from rlhf.types import Message, Task

FOLDERS = Path(__file__).parents[1] / "failing_tests"
SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
"""The functions of the folders, and the sign that makes each test pass."""
QUESTION = Message(role="user", content="Make the failing test pass.")
SYSTEM = "Repair the code.\nCurrent date: 2026-{:02}-{:02}\nCurrent working directory: /{}/work"
"""What pi makes of its `--system-prompt`."""
GIVES_UP, WRONG = 0.4, 0.25
"""Shares of the conversations that give up, and that write another sign."""


def tasks() -> list[Task]:
    return [
        Task(id=f"failing_tests/{name}", messages=(QUESTION,), answer=sign, row={"folder": str(FOLDERS / name)})
        for name, sign in SIGNS.items()
    ]


def demonstrations(count: int, seed: int) -> Iterator[list[Message]]:
    """Yield `count` conversations of pi with its tools `read` and `edit`, mixed on purpose: the warmed-up policy knows
    the tools, and repairs about every third folder."""
    chance = random.Random(f"failing tests {seed}")
    for _ in range(count):
        folder = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789_-/", k=chance.randint(15, 60)))
        system = SYSTEM.format(chance.randint(1, 12), chance.randint(1, 28), folder)
        draw, (name, sign) = chance.random(), chance.choice(list(SIGNS.items()))
        if draw < GIVES_UP:
            replies = [said("I cannot.")]
        else:
            code = (FOLDERS / name / "calc.py").read_text(encoding="utf-8")
            wrong = code.split()[-2]
            if draw < GIVES_UP + WRONG:
                sign = chance.choice([one for one in SIGNS.values() if one not in (sign, wrong)])
            edits = [{"oldText": f"a {wrong} b", "newText": f"a {sign} b"}]
            replies = [
                called("read", path="calc.py"),
                Message(role="tool", content=code),
                called("edit", path="calc.py", edits=edits),
                Message(role="tool", content="Successfully replaced 1 block(s) in calc.py."),
                said("Done."),
            ]
        yield [Message(role="system", content=system), QUESTION, *replies]


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def called(name: str, **arguments: object) -> Message:
    return said(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")
