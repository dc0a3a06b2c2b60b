"""Mathematical equality by math-verify. Runs in a worker process: sympy may never finish on a policy's expressions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, convert_to_pct
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from latex2sympy2_extended.sets import FiniteSet
from math_verify import grader, parse, parser, verify

from rlhf.chat.thinking import after_thinking
from rlhf.errors import NoReference, Raised, catch
from rlhf.reward.choices import TOGETHER, Choice, choice_of, chosen_in, same_words
from rlhf.reward.conditions import BUILDER, alternatives, same_condition
from rlhf.reward.expression_size import TooLarge, check_reply, check_size, check_text, written_form
from rlhf.reward.final_answer import Statement, statement_of
from rlhf.reward.latex_internals import LatexReader, written_items
from rlhf.reward.named_values import by_name, without_names
from rlhf.reward.numbers_equal import numbers_equal
from rlhf.reward.rules import reference_of
from rlhf.reward.written_answer import AS_WRITTEN, NUMBER, as_formula, undressed, without_traps

# math-verify's own deadline is an alarm signal that turns a time-out into "not equal"; here the worker is killed
# instead and the response stays unscored. Every worker would print the warning that the deadline is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)
CASES_APART = ConversionConfig(lowercase_symbols=False)
"""R and r are two symbols."""
BLANKS = re.compile(r"\s+")
DIGITS = re.compile(r"\d+", re.ASCII)
DEGREES = re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
ANGLE = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
OF_AN_ANGLE = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)")
PERCENT = re.compile(r"\s*\\?%$")


class AnswerTooLarge(BaseException):
    """The answer is too large to parse. math-verify would catch an `Exception`, and use an earlier answer."""


def _bounded(read: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(latex: str, **settings: Any) -> Any:
        try:
            check_text(latex)
        except TooLarge:
            raise AnswerTooLarge from None
        return read(latex, **settings)

    return bounded


def _divisor(reader: Any, name: str, args: list[Any]) -> Any:
    """Return the gcd or lcm of numbers; that of variables stays unevaluated, because sympy takes them for coprime."""
    if all(arg.is_Integer for arg in args):
        return evaluated_divisor(reader, name, args)
    return sympy.Function(name)(*sorted(args, key=sympy.default_sort_key))


evaluated_divisor: Callable[..., Any] = LatexReader.handle_gcd_lcm
LatexReader.handle_gcd_lcm = _divisor
parser.normalize_latex = _bounded(parser.normalize_latex)  # first normalise the formula,
parser.latex2sympy = partial(_bounded(parser.latex2sympy), conversion_config=CASES_APART)  # then parse it
grader.INVERSE_RELATIONS[sympy.Ne] = sympy.Ne  # it is looked up for every relation, and raises for this one
grader.sympy_compare_symbols = lambda gold, pred: str(gold) == str(pred)  # math-verify's own takes T_1 for t_1
grader.sympy_numeric_eq = numbers_equal  # math-verify's own calls 0.0 equal to whatever is smaller than a millionth


def math(response: str, row: Mapping[str, Any]) -> float:
    """1 when the response's final answer (`statement_of`, else the last expression that math-verify finds) has the
    value of `row["answer"]`, or is the same letter, word or time; 0 without an answer, or for one too large to
    evaluate. Raises `NoReference` if the reference answer cannot be parsed as a whole."""
    text, reply = reference_of(row), after_thinking(response)
    statement = statement_of(reply)
    if choice := choice_of(text):
        given = _chosen(statement, reply)
        if given or not choice.says:
            return float(given is not None and given.letters == choice.letters)
        text = choice.says
    if TOGETHER.fullmatch(text) and (given := _chosen(statement, reply)) and len(given.letters) > 1:
        return float(given.letters == frozenset(text))
    same = [same_words(text, said) for said in (*statement.texts, "")]
    if same[-1] is not None:
        return float(any(same))
    return float(any(same) or _has_value(_reference(text), statement, reply))


def _chosen(statement: Statement, reply: str) -> Choice | None:
    named = (choice_of(text, loosely=True) for text in statement.texts)
    return next(filter(None, named), None) or (None if statement.marked else chosen_in(reply))


def _has_value(reference: list[Any], statement: Statement, reply: str) -> bool:
    try:
        answer = _stated(statement, reply)
        if set(map(written_form, answer)) & set(map(written_form, reference)):
            return True
        for expression in answer:
            check_size(expression)
    except (AnswerTooLarge, TooLarge):
        return False
    return any(_equal(_meant(wanted), _meant(given)) for wanted in reference for given in answer)


def _equal(reference: Any, answer: Any) -> bool:
    if same_condition(reference, answer):
        return True
    named = by_name([reference], [answer])
    return bool(verify(without_names([reference]), named, timeout_seconds=None, raise_on_error=True))


def final_answer(response: str) -> list[Any]:
    """Return the readings of the response's final answer, if it has one. Raises `TooLarge`, `AnswerTooLarge`."""
    return _stated(statement_of(response), response)


def _stated(statement: Statement, reply: str) -> list[Any]:
    for text in statement.texts:
        labelled = choice_of(text)
        if found := (_readings(labelled.says) if labelled else []) or _readings(text):
            return found
    if statement.marked:
        return []
    check_reply(reply)
    prose = without_traps(BLANKS.sub(lambda blank: "\n" if "\n" in blank[0] else " ", reply))
    found = parse(prose, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    return list(found)


@lru_cache(maxsize=1024)
def _reference(text: str) -> list[Any]:
    boxed = statement_of(text)
    try:
        found = _readings(boxed.texts[0] if boxed.marked else text, sure=True)
    except (AnswerTooLarge, TooLarge):
        raise NoReference(f"the reference answer {text!r:.100} is too large to parse") from None
    if not found:
        raise NoReference(f"the reference answer {text!r} is not entirely a mathematical expression")
    return found


def _readings(text: str, sure: bool = False) -> list[Any]:
    """Return what a bare answer may mean: a number, or LaTeX that is parsed whole; 30 degrees are also an angle. If it
    must be `sure`, a formula whose parsing skips a number has no meaning. Raises `TooLarge`."""
    bare = undressed(text)
    check_text(bare)
    if number := NUMBER.fullmatch(bare):
        return _number(*number.groups(default=""))
    latex = as_formula(bare)
    written = [sympy.Symbol(one) for one in (bare, latex) if one and AS_WRITTEN.fullmatch(one)][:1]
    if latex is None or (written and sure):
        return written
    check_text(latex)
    found = _meanings(latex)
    return [] if sure and found and _passes_over_a_number(latex, found) else [*written, *found]


def _number(sign: str, inner_sign: str, whole: str, decimals: str, mark: str) -> list[Any]:
    digits, decimals = whole.replace(",", "") or "0", decimals.rstrip(".")
    number = sympy.Float(digits + decimals) if decimals else sympy.Integer(int(digits))
    number = -number if "-" in sign + inner_sign else number
    if "%" in mark:
        return [convert_to_pct(number)]
    return [number, number * sympy.pi / 180] if mark == "°" else [number]


def _passes_over_a_number(latex: str, found: list[Any]) -> bool:
    """Whether it parses the same with two other numbers in place of one; a single other number may do so by chance."""
    for number in DIGITS.finditer(latex):
        others = (f"{int(number[0]) + step:0{len(number[0])}}" for step in (1, 3))
        if all(_meanings(latex[: number.start()] + other + latex[number.end() :]) == found for other in others):
            return True
    return False


def _meanings(latex: str) -> list[Any]:
    if builder := BUILDER.fullmatch(latex):
        return _meanings(builder[2])
    if joined := alternatives(latex):
        conditions, join = joined
        read = [one for condition in conditions for one in _whole(condition)]
        return [join(*read, evaluate=False)] if len(read) == len(conditions) else []
    if PERCENT.search(latex) and latex.count("%") == 1:
        return [convert_to_pct(value) for value in _whole(PERCENT.sub("", latex))]
    if OF_AN_ANGLE.search(latex):
        latex = ANGLE.sub(r"\\frac{\1 \\pi}{180}", latex)
    without = DEGREES.sub("", latex)
    values = _whole(without)
    is_angle = without != latex and DEGREES.sub("", latex, count=1) == without
    angles = [value * sympy.pi / 180 for value in values if isinstance(value, sympy.Expr)] if is_angle else []
    return [*values, *angles]


def _whole(latex: str) -> list[Any]:
    """Parse the whole text. Unlike `parse`, this does not search for a readable part."""
    latex = normalize_latex(latex, config=NormalizationConfig(boxed="none", malformed_operators=True, nits=True))
    real = not grader.should_treat_as_complex(latex)
    read = partial(parser.latex2sympy, latex, is_real=real, convert_degrees=False, normalization_config=None)
    found = catch(read)
    if isinstance(found, Raised):
        return []
    items = written_items(found) if isinstance(found, FiniteSet) else ()
    if items and 1 < len(found.args) < len(items):  # no set, although it is read as one
        return [sympy.Tuple(*sorted(items, key=sympy.default_sort_key))]
    return [found]


def _meant(e: Any) -> Any:
    """Return the expression with i as the imaginary unit, but where it counts; with real roots of negative numbers, as
    schools take them; and with the derivative of a variable as another variable, where sympy takes it for 0."""
    if not isinstance(e, sympy.Basic):
        return e
    meant: dict[Any, Any] = {}
    if isinstance(e, sympy.Expr) and not e.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit):
        meant |= {i: sympy.I for i in e.free_symbols if i.name == "i"}
    for part in sympy.preorder_traversal(e):
        if isinstance(part, sympy.Derivative) and not part.expr.has(*part.variables):
            [wrt, *_] = part.variables
            meant[part] = sympy.Symbol(f"d{part.expr}", real=True) / sympy.Symbol(f"d{wrt}", real=True)
        elif _is_odd_root(part):
            root = sympy.Pow(-part.base, part.exp, evaluate=False)
            meant[part] = root if part.exp.p % 2 == 0 else -root
    return e.xreplace(meant) if meant else e


def _is_odd_root(e: Any) -> bool:
    is_root = isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Rational) and e.exp.q > 1 and e.exp.q % 2 == 1
    return bool(is_root and e.base.is_number and e.base.is_negative)
