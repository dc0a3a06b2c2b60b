"""Tool-use environment: an arithmetic question, and a calculator as the tool."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from zlib import crc32

from rlhf.env.tool_use import Handled, ToolUseEnvironment, text_argument
from rlhf.types import Message, Observation, Task, Tool

CALCULATOR = Tool(
    name="calculator",
    description="Evaluates an expression of numbers, + - * / and parentheses.",
    parameters={"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)
OPERATORS: Mapping[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
LONGEST = 200
"""Maximum characters of an expression; its result is then small enough to write out."""


class CalculatorEnvironment(ToolUseEnvironment):
    """Asks the task's question, or for the value of `a+b` or `a*b` with numbers of `digits` digits drawn from the seed.
    A reply without a tool call is the final answer; its reward is 1 or 0."""

    def __init__(self, digits: int = 3, operations: str = "+*") -> None:
        description = "Answer a question of arithmetic; a calculator helps."
        super().__init__(
            "calculator",
            description,
            [Handled(tool=CALCULATOR, run=lambda arguments: calculated(text_argument(arguments, "expression")))],
        )
        self._digits, self._operations = digits, operations

    def reset(self, task: Task, *, seed: int) -> Observation:
        if not task.messages:
            question = made_question(seed, self._digits, self._operations)
            messages = (Message(role="user", content=question),)
            task = replace(task, messages=messages, answer=calculated(question))
        return super().reset(task, seed=seed)

    def step(self, action: Message) -> Observation:
        if action.tool_calls:
            return super().step(action)
        right = stated(action.content) == stated(self._task.answer or "")
        return Observation(messages=(), reward=float(right), terminated=True)


def calculated(expression: str) -> str:
    """Return the value of an expression as text, or what is wrong with it."""
    if len(expression) > LONGEST:
        return f"error: the expression has more than {LONGEST} characters"
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        return str(int(value)) if value == int(value) else f"{value:.6g}"
    except (ArithmeticError, MemoryError, RecursionError, SyntaxError, ValueError) as error:
        return f"error: {error}"


def stated(text: str) -> str:
    """Return the answer in a text: its last number, or else the whole text."""
    numbers = NUMBER.findall(text.replace(",", ""))
    return numbers[-1] if numbers else text.strip()


def made_question(seed: int, digits: int, operations: str) -> str:
    """`a+b` or `a*b`, determined by the seed. Even and odd seeds, of training and evaluation, share no question."""
    chance = random.Random(seed)
    while True:
        first, second = (chance.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
        question = f"{first}{chance.choice(operations)}{second}"
        if crc32(question.encode()) % 2 == seed % 2:
            return question


def _value(node: ast.AST) -> float:
    """Evaluate a tree of numbers and operators; no other node is ever evaluated."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(op=symbol) if type(symbol) in OPERATORS:
            return OPERATORS[type(symbol)](_value(node.left), _value(node.right))
        case ast.UnaryOp(op=symbol) if type(symbol) in OPERATORS:
            return OPERATORS[type(symbol)](_value(node.operand))
    raise ValueError("use only numbers, + - * / and parentheses")
