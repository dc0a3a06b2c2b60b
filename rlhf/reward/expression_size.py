"""How large a mathematical expression is, before anything of it is evaluated. `9^{9^{9^{9}}}` is ten characters, and no
computer holds it: what a policy writes is measured first, by the logarithms of what its parts would come to."""

from __future__ import annotations

import math
import re
from typing import Any

import sympy

LONGEST_TEXT, DEEPEST_TEXT = 2000, 60
"""Characters of an answer, and brackets within brackets."""
MOST_DIGITS = 10_000.0
"""Of any number that is computed on the way, before or behind the point."""
MOST_TERMS = 500
"""Of a polynomial when it is multiplied out."""
COUNTED = ("factorial", "factorial2", "subfactorial", "binomial", "gamma", "RisingFactorial", "FallingFactorial")
MOST_COUNTED = 3000.0
"""Argument of a factorial, and steps of a sum."""
WHILE_READ = re.compile(r"(gcd|lcm|det|rref).*(\^|!|\d{12})|(\^|!|\d{12}).*(gcd|lcm|det|rref)", re.DOTALL)
"""Functions that the parser evaluates, of what may be large."""


class TooLarge(Exception):
    """An expression that nobody should evaluate."""


def check_text(latex: str) -> None:
    """Raises `TooLarge` for an answer that takes too long to read. Linear."""
    depth = deepest = 0
    for letter in latex[: LONGEST_TEXT + 1]:
        depth += (letter in "({[") - (letter in ")}]")
        deepest = max(deepest, depth)
    if len(latex) > LONGEST_TEXT or deepest > DEEPEST_TEXT or WHILE_READ.search(latex):
        raise TooLarge


def check_size(expression: Any) -> None:
    """Raises `TooLarge` where evaluating the expression would take too many digits, terms or steps."""
    try:
        _logarithm(expression)
        _terms(expression)
    except (OverflowError, RecursionError):
        raise TooLarge from None


def form(expression: Any) -> str:
    """How it is written, whatever the order of sums and products. Nothing is evaluated. Raises `TooLarge`."""
    try:
        return _form(expression)
    except RecursionError:
        raise TooLarge from None


def _form(e: Any) -> str:
    parts = [_form(part) for part in getattr(e, "args", ())]
    ordered = sorted(parts) if isinstance(e, sympy.Add | sympy.Mul) else parts
    return f"{type(e).__name__}({','.join(ordered)})" if parts else sympy.srepr(e)


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
