"""Mathematical equality by math-verify. Runs in a worker process: sympy may never finish on a policy's expressions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from math_verify import parse, parser, verify

from rlhf.errors import NoReference
from rlhf.reward.expression_size import TooLarge, check_reply, check_size, check_text, written_form
from rlhf.reward.stated import as_formula, is_number

# math-verify's own deadline is an alarm signal that turns a timeout into "not equal"; here the worker is killed instead
# and the response stays unscored. Every worker would print the warning that the deadline is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)
MARK = "####"


class AnswerTooLarge(BaseException):
    """The answer is too large to parse. Not an `Exception`: math-verify catches those, and would use an earlier
    answer."""


def _bounded(read: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(latex: str, **settings: Any) -> Any:
        try:
            check_text(latex)
        except TooLarge:
            raise AnswerTooLarge from None
        return read(latex, **settings)

    return bounded


parser.latex2sympy = _bounded(parser.latex2sympy)  # math-verify parses each formula it found here


def math(response: str, row: Mapping[str, Any]) -> float:
    """1 when the response's final answer has the value of `row["answer"]`.

    The final answer is the text after the last `####` on its line, else what math-verify finds: the last `\\boxed{}`,
    "the answer is …", and failing these the last expression. A response without an answer scores 0, and so does one
    that is too large to evaluate and not written like the reference. Raises `NoReference` when the reference answer is
    not a mathematical expression: then no response can be scored.
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
    """A bare answer: a number in everyday notation ("$1,080", "5 hours"), else LaTeX without delimiters, parsed as a
    whole. Raises `TooLarge`."""
    check_text(text)
    return (_parse(text) if is_number(text) else []) or _parse(f"\\boxed{{{as_formula(text)}}}")


def _parse(text: str) -> list[Any]:
    plain = text.replace("\\$", "")  # a currency, never a formula's delimiter, but math-verify misparses it
    found: list[Any] = parse(plain, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    return found
