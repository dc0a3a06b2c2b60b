"""Bound the size of a mathematical expression before evaluating it. `9^{9^{9^{9}}}` has ten characters but does not fit
in any memory: the policy's expressions are measured first, by estimating logarithms of intermediate results."""

from __future__ import annotations

import math
import re
from typing import Any

import sympy

LONGEST_TEXT, DEEPEST_TEXT = 2000, 25
"""Maximum characters of an answer, and maximum nesting depth of brackets."""
MOST_DIGITS = 10_000.0
"""Maximum digits of any intermediate number, before or after the decimal point."""
MOST_TERMS = 500
"""Maximum terms of an expanded polynomial."""
COUNTED = ("factorial", "factorial2", "subfactorial", "binomial", "gamma", "RisingFactorial", "FallingFactorial")
MOST_COUNTED = 3000.0
"""Maximum argument of a factorial, and maximum number of steps of a sum."""
MOST_FUNCTIONS = 24
"""Maximum number of functions, roots and symbolic denominators together: comparison brings them to a common form."""
INFINITE = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
MOST_CELLS = 25
"""Maximum number of cells of matrices in a text that applies a function to them."""
WHILE_READ = re.compile(r"(det|rref).*(\^|!|\d{12})|(\^|!|\d{12}).*(det|rref)", re.DOTALL)
"""Functions that the parser itself evaluates, with possibly large arguments."""
MOST_OPEN, MOST_FINAL = 100, 30
"""Maximum number of unclosed formulas, and of "final answer" phrases: each costs math-verify a scan."""
ARITHMETIC = re.compile(r"[\d.,\s+\-*/\u00d7\u00f7^()]+")
"""A run that math-verify matches as one expression, starting at each of its characters."""
OF_MATRICES = re.compile(r"det|rref|\^")


class TooLarge(Exception):
    """The expression is too large to evaluate."""


def check_reply(text: str) -> None:
    """Raise `TooLarge` for a reply in which searching for the answer would take too long. Linear."""
    for opener, closer in (("\\[", "\\]"), ("\\(", "\\)")):
        if text.count(opener, text.rfind(closer) + 1) > MOST_OPEN:
            raise TooLarge
    longest = max(map(len, ARITHMETIC.findall(text)), default=0)
    if longest > LONGEST_TEXT or text.lower().count("final answer") > MOST_FINAL:
        raise TooLarge


def check_text(latex: str) -> None:
    """Raise `TooLarge` for an answer that would take too long to parse. Linear."""
    depth = deepest = 0
    for letter in latex[: LONGEST_TEXT + 1]:
        depth += (letter in "({[") - (letter in ")}]")
        deepest = max(deepest, depth)
    if len(latex) > LONGEST_TEXT or deepest > DEEPEST_TEXT or WHILE_READ.search(latex):
        raise TooLarge
    if latex.count("&") > MOST_CELLS and OF_MATRICES.search(latex):
        raise TooLarge


def check_size(expression: Any) -> None:
    """Raise `TooLarge` where evaluating the expression would take too many digits, terms or steps, and for infinite
    sums, integrals and arithmetic with infinity: sympy guesses their equality from numerical values."""
    try:
        _finite(expression)
        _functions(expression)
        _logarithm(expression)
        _terms(expression)
    except (OverflowError, RecursionError):
        raise TooLarge from None


def written_form(expression: Any) -> str:
    """Return a text of the expression, independent of the order of sums and products. Raises `TooLarge`."""
    try:
        return _form(expression)
    except RecursionError:
        raise TooLarge from None


def _form(e: Any) -> str:
    parts = [_form(part) for part in getattr(e, "args", ())]
    ordered = sorted(parts) if isinstance(e, sympy.Add | sympy.Mul) else parts
    return f"{type(e).__name__}({','.join(ordered)})" if parts else sympy.srepr(e)


def _finite(e: Any) -> None:
    """Infinity alone is a valid answer, and so is a set or an interval bounded by it."""
    parts = getattr(e, "args", ())
    for part in parts:
        _finite(part)
    arithmetic = isinstance(e, sympy.Add | sympy.Mul | sympy.Pow | sympy.Function)
    if e in (sympy.zoo, sympy.nan) or (arithmetic and any(part in INFINITE for part in parts)):
        raise TooLarge
    if isinstance(e, sympy.Integral | sympy.Limit):
        raise TooLarge
    if isinstance(e, sympy.Sum | sympy.Product) and (e.function.has(sympy.Sum, sympy.Product) or e.has(*INFINITE)):
        raise TooLarge


def _functions(e: Any) -> int:
    """Return the number of functions, roots and symbolic denominators; those in a power count once for each factor."""
    count = sum(_functions(part) for part in getattr(e, "args", ()))
    if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer):
        count = count * abs(int(e.exp)) + int(int(e.exp) < 0 and bool(e.base.free_symbols))
    elif isinstance(e, sympy.Function | sympy.Pow):
        count += 1
    if count > MOST_FUNCTIONS:
        raise TooLarge
    return count


def _logarithm(e: Any) -> float:
    """Approximate log10 of the absolute value; 0 for an expression without a value. Symbols count as 1."""
    if isinstance(e, sympy.Rational):
        digits = [math.log10(abs(int(part))) if part else 0.0 for part in (e.p, e.q)]
        return _bounded(digits[0]) - _bounded(digits[1])
    if isinstance(e, sympy.Float):
        return _bounded(float(sympy.log(abs(e), 10))) if e.is_finite and e else 0.0
    parts = [_logarithm(part) for part in getattr(e, "args", ())]  # parsed expressions also contain matrices and texts
    if isinstance(e, sympy.Pow):
        base, exponent = parts
        return _bounded(math.copysign(1.0, _sign(e.exp)) * base * 10 ** min(exponent, 300.0))
    if isinstance(e, sympy.Mul):
        return _bounded(math.fsum(parts))
    if isinstance(e, sympy.Sum | sympy.Product):
        _bounded_steps(max(parts))
    elif type(e).__name__ in COUNTED:
        _bounded_steps(max(parts))
        return _bounded(10 ** max(parts) * max(max(parts), 1.0))
    return max(parts, default=0.0) + math.log10(max(len(parts), 1))


def _sign(exponent: Any) -> float:
    return float(exponent) if isinstance(exponent, sympy.Integer | sympy.Rational) else 1.0


def _bounded(logarithm: float) -> float:
    if not abs(logarithm) <= MOST_DIGITS:
        raise TooLarge
    return logarithm


def _bounded_steps(logarithm: float) -> None:
    if logarithm > math.log10(MOST_COUNTED):
        raise TooLarge


def _terms(e: Any) -> int:
    """Return the number of terms of the expanded polynomial."""
    parts = [_terms(part) for part in getattr(e, "args", ())]
    if isinstance(e, sympy.Mul):
        return _few(math.prod(parts))
    if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer) and parts[0] > 1:
        power = abs(int(e.exp))
        return _few(math.comb(power + parts[0] - 1, parts[0] - 1) if power <= MOST_TERMS else MOST_TERMS + 1)
    return _few(sum(parts)) if isinstance(e, sympy.Add) else 1


def _few(count: int) -> int:
    if count > MOST_TERMS:
        raise TooLarge
    return count
