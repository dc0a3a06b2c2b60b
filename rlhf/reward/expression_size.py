"""How large a mathematical expression is, before anything of it is evaluated. `9^{9^{9^{9}}}` is ten characters, and no
computer holds it: what a policy writes is measured first, by the logarithms of what its parts would come to."""

from __future__ import annotations

import math
import re
from typing import Any

import sympy

LONGEST_TEXT, DEEPEST_TEXT = 2000, 25
"""Characters of an answer, and brackets within brackets."""
MOST_DIGITS = 10_000.0
"""Of any number that is computed on the way, before or behind the point."""
MOST_TERMS = 500
"""Of a polynomial when it is multiplied out."""
COUNTED = ("factorial", "factorial2", "subfactorial", "binomial", "gamma", "RisingFactorial", "FallingFactorial")
MOST_COUNTED = 3000.0
"""Argument of a factorial, and steps of a sum."""
MOST_FUNCTIONS = 24
"""Functions, roots and denominators with symbols, together: what is compared is brought to one form of them."""
INFINITE = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
MOST_CELLS = 25
"""Of matrices in a text that holds a function of them."""
WHILE_READ = re.compile(r"(gcd|lcm|det|rref).*(\^|!|\d{12})|(\^|!|\d{12}).*(gcd|lcm|det|rref)", re.DOTALL)
"""Functions that the parser evaluates, of what may be large."""
MOST_OPEN, MOST_FINAL = 100, 30
"""Formulas that are begun and not ended, and announcements of a final answer: math-verify reads the rest of the reply
for each of them."""
ARITHMETIC = re.compile(r"[\d.,\s+\-*/\u00d7\u00f7^()]+")
"""What math-verify takes for one expression, wherever in it one may begin."""
OF_MATRICES = re.compile(r"det|rref|\^")


class TooLarge(Exception):
    """An expression that nobody should evaluate."""


def check_reply(text: str) -> None:
    """Raises `TooLarge` for a reply in which an answer is looked for too long. Linear."""
    for opener, closer in (("\\[", "\\]"), ("\\(", "\\)")):
        if text.count(opener, text.rfind(closer) + 1) > MOST_OPEN:
            raise TooLarge
    if (
        text.lower().count("final answer") > MOST_FINAL
        or max(map(len, ARITHMETIC.findall(text)), default=0) > LONGEST_TEXT
    ):
        raise TooLarge


def check_text(latex: str) -> None:
    """Raises `TooLarge` for an answer that takes too long to read. Linear."""
    depth = deepest = 0
    for letter in latex[: LONGEST_TEXT + 1]:
        depth += (letter in "({[") - (letter in ")}]")
        deepest = max(deepest, depth)
    if len(latex) > LONGEST_TEXT or deepest > DEEPEST_TEXT or WHILE_READ.search(latex):
        raise TooLarge
    if latex.count("&") > MOST_CELLS and OF_MATRICES.search(latex):
        raise TooLarge


def check_size(expression: Any) -> None:
    """Raises `TooLarge` where evaluating the expression would take too many digits, terms or steps, and for sums,
    integrals and arithmetic without end: what they are equal to is not computed, but guessed from numbers."""
    try:
        _finite(expression)
        _functions(expression)
        _logarithm(expression)
        _terms(expression)
    except (OverflowError, RecursionError):
        raise TooLarge from None


def written_form(expression: Any) -> str:
    """How it is written, whatever the order of sums and products. Nothing is evaluated. Raises `TooLarge`."""
    try:
        return _form(expression)
    except RecursionError:
        raise TooLarge from None


def _form(e: Any) -> str:
    parts = [_form(part) for part in getattr(e, "args", ())]
    ordered = sorted(parts) if isinstance(e, sympy.Add | sympy.Mul) else parts
    return f"{type(e).__name__}({','.join(ordered)})" if parts else sympy.srepr(e)


def _finite(e: Any) -> None:
    """Infinity alone is an answer, and so is a set or an interval up to it."""
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
    """How many functions, roots and denominators with symbols it is made of, those of a power as often as it has
    factors."""
    count = sum(_functions(part) for part in getattr(e, "args", ()))
    if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer):
        count = count * abs(int(e.exp)) + int(int(e.exp) < 0 and bool(e.base.free_symbols))
    elif isinstance(e, sympy.Function | sympy.Pow):
        count += 1
    if count > MOST_FUNCTIONS:
        raise TooLarge
    return count


def _logarithm(e: Any) -> float:
    """About log10 of its absolute value; 0 for what has no value. Symbols count as 1."""
    if isinstance(e, sympy.Rational):
        digits = [math.log10(abs(int(part))) if part else 0.0 for part in (e.p, e.q)]
        return _bounded(digits[0]) - _bounded(digits[1])
    if isinstance(e, sympy.Float):
        return _bounded(float(sympy.log(abs(e), 10))) if e.is_finite and e else 0.0
    parts = [_logarithm(part) for part in getattr(e, "args", ())]  # matrices and texts are among what is parsed
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
    """Terms of its polynomial."""
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
