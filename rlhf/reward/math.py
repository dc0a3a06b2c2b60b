"""Mathematical equality by math-verify. Runs in a worker process: sympy may never finish on a policy's expressions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, extract_boxed_content, normalize_latex
from math_verify import grader, parse, parser, verify

from rlhf.errors import NoReference, Raised, catch
from rlhf.reward.expression_size import TooLarge, check_reply, check_size, check_text, written_form
from rlhf.reward.named_values import by_name, without_names
from rlhf.reward.numbers_equal import numbers_equal
from rlhf.reward.written_answer import as_formula, is_number, undressed

# math-verify's own deadline is an alarm signal that turns a time-out into "not equal"; here the worker is killed
# instead and the response stays unscored. Every worker would print the warning that the deadline is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)
MARK = "####"
BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
LETTER = re.compile(r"(?i:answer|option|choice)(?i:\s+is)?\s*:?[\s*]*\(?([A-E])\)?[\s*.]*$")
LONGEST_LETTER = 60
BLANKS = re.compile(r"\s+")
DIGITS = re.compile(r"\d+", re.ASCII)


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


parser.normalize_latex = _bounded(parser.normalize_latex)  # a formula that was found is first brought to one form,
parser.latex2sympy = _bounded(parser.latex2sympy)  # and then read
grader.INVERSE_RELATIONS[sympy.Ne] = sympy.Ne  # it is looked up for every relation, and raises for this one
grader.sympy_numeric_eq = numbers_equal  # math-verify's own calls 0.0 equal to whatever is smaller than a millionth


def math(response: str, row: Mapping[str, Any]) -> float:
    """1 when the response's final answer has the value of `row["answer"]`.

    The final answer is what follows the last `####` on its line, else the last `\\boxed{}`, else what math-verify
    finds: "the answer is …", and failing it the last expression. A response without any is 0, and so is one that is too
    large to be evaluated and is not written as the reference is. Raises `NoReference` when the reference answer is no
    mathematical expression, or is one only in part: then nothing can be said of the response.
    """
    reference = _reference(str(row["answer"]))
    try:
        answer = final_answer(response)
        if list(map(written_form, answer)) == list(map(written_form, reference)):
            return 1.0
        for expression in answer:
            check_size(expression)
    except (AnswerTooLarge, TooLarge):
        return 0.0
    named = _complex(by_name(reference, answer))
    return float(verify(_complex(without_names(reference)), named, timeout_seconds=None, raise_on_error=True))


def final_answer(response: str) -> list[Any]:
    """Return the response's final answer as sympy expressions; empty when there is none. Raises `TooLarge`,
    `AnswerTooLarge`."""
    _, mark, stated = response.rpartition(MARK)
    text = stated.strip().partition("\n")[0] if mark else response
    if mark or BOX.search(text):
        return _stated(text)
    letter = LETTER.search(text[-LONGEST_LETTER:])
    if letter:
        return _stated(letter[1])
    check_reply(text)
    return _parse(BLANKS.sub(lambda blank: "\n" if "\n" in blank[0] else " ", text))


@lru_cache(maxsize=1024)
def _reference(text: str) -> list[Any]:
    try:
        reference = _stated(text, sure=True)
    except (AnswerTooLarge, TooLarge):
        raise NoReference(f"the reference answer {text!r:.100} is too large to be read") from None
    if not reference:
        raise NoReference(f"the reference answer {text!r} is not a mathematical expression, or only a part of it is")
    return reference


def _stated(text: str, sure: bool = False) -> list[Any]:
    """Return a bare answer: a number as people write it ("$1,080", "5 hours"), else LaTeX without delimiters, read
    whole. Where it must be `sure`, nothing is read of a formula that passes over a number. Raises `TooLarge`."""
    bare = undressed(extract_boxed_content(text, mode="last") if BOX.search(text) else text)
    check_text(bare)
    number = _parse(bare) if is_number(bare) else []
    latex = as_formula(bare)
    if number or latex is None:
        return number
    found = _whole(latex)
    return [] if sure and found and _passes_over_a_number(latex, found) else found


def _passes_over_a_number(latex: str, found: list[Any]) -> bool:
    """Whether it reads the same with two other numbers in the place of one; with one, it may by chance."""
    for number in DIGITS.finditer(latex):
        others = (f"{int(number[0]) + step:0{len(number[0])}}" for step in (1, 3))
        if all(_whole(latex[: number.start()] + other + latex[number.end() :]) == found for other in others):
            return True
    return False


def _whole(latex: str) -> list[Any]:
    """Its grammar ends with the text. Unlike `parse`, nothing looks for a part that is readable."""
    latex = normalize_latex(latex, config=NormalizationConfig(boxed="none", malformed_operators=True, nits=True))
    real = not grader.should_treat_as_complex(latex)
    read = partial(parser.latex2sympy, latex, is_real=real, convert_degrees=False, normalization_config=None)
    found = catch(read)
    return [] if isinstance(found, Raised) else [found]


def _parse(text: str) -> list[Any]:
    plain = text.replace("\\$", "")  # a currency, never the edge of a formula, yet math-verify trips over it
    found: list[Any] = parse(plain, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    return found


def _complex(answer: list[Any]) -> list[Any]:
    """With the i of an expression as the imaginary unit, but where it counts."""
    return [
        e.xreplace({i: sympy.I for i in e.free_symbols if i.name == "i"})
        if isinstance(e, sympy.Expr) and not e.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)
        else e
        for e in answer
    ]
