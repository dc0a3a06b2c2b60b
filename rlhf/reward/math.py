"""Mathematical equality by math-verify. Runs in a worker process: sympy can take for ever on what a policy writes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from math_verify import parse, parser, verify

from rlhf.errors import NoReference
from rlhf.reward.expression_size import TooLarge, check_reply, check_size, check_text, written_form
from rlhf.reward.stated import as_formula, is_number

# math-verify's own deadline is an alarm signal that turns a time-out into "not equal"; here the worker is killed
# instead and the response stays without a number. Every worker would print its warning that the deadline is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)
MARK = "####"


class AnswerTooLarge(BaseException):
    """An answer too large to be read. No `Exception`: math-verify passes over these, and reads an earlier answer."""


def _bounded(read: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(latex: str, **settings: Any) -> Any:
        try:
            check_text(latex)
        except TooLarge:
            raise AnswerTooLarge from None
        return read(latex, **settings)

    return bounded


parser.latex2sympy = _bounded(parser.latex2sympy)  # it is where a formula that was found is read


def math(response: str, row: Mapping[str, Any]) -> float:
    """1 when the response's final answer has the value of `row["answer"]`.

    The final answer is what follows the last `####` on its line, else what math-verify finds: the last `\\boxed{}`,
    "the answer is …", and failing these the last expression. A response without any is 0, and so is one that is too
    large to be evaluated and is not written as the reference is. Raises `NoReference` when the reference answer is no
    mathematical expression: then nothing can be said of the response.
    """
    try:
        reference = _stated(row["answer"])
    except (AnswerTooLarge, TooLarge):
        raise NoReference(f"the reference answer {row['answer']!r:.100} is too large to be read") from None
    if not reference:
        raise NoReference(f"the reference answer {row['answer']!r} is not a mathematical expression")
    try:
        answer = final_answer(response)
        if list(map(written_form, answer)) == list(map(written_form, reference)):
            return 1.0
        for expression in answer:
            check_size(expression)
    except (AnswerTooLarge, TooLarge):
        return 0.0
    return float(verify(reference, answer, timeout_seconds=None, raise_on_error=True))


def final_answer(response: str) -> list[Any]:
    """The response's final answer as sympy expressions; empty when there is none. Raises `TooLarge`,
    `AnswerTooLarge`."""
    _, mark, stated = response.rpartition(MARK)
    if mark:
        return _stated(stated.strip().partition("\n")[0])
    check_reply(response)
    return _parse(response)


def _stated(text: str) -> list[Any]:
    """A bare answer: a number as people write it ("$1,080", "5 hours"), else LaTeX without delimiters, read whole.
    Raises `TooLarge`."""
    check_text(text)
    return (_parse(text) if is_number(text) else []) or _parse(f"\\boxed{{{as_formula(text)}}}")


def _parse(text: str) -> list[Any]:
    plain = text.replace("\\$", "")  # a currency, never the edge of a formula, yet math-verify trips over it
    found: list[Any] = parse(plain, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    return found
