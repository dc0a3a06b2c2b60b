"""Whether two expressions are the same number: exactly where both are exact, to six digits where one is a decimal."""

from __future__ import annotations

from typing import Any

import sympy

ABSOLUTE, RELATIVE = 1e-6, 5e-6
"""Six digits behind the point and six that count: both, for else every number below a millionth would be 0."""
FLOAT = 1e-14
"""Of a decimal, what is lost in computing with it."""
DIGITS = 30


def numbers_equal(a: Any, b: Any, *_: int) -> bool:
    """In the place of math-verify's `sympy_numeric_eq`, which compares to a number of places behind the point. False
    where it cannot say: then the difference is simplified."""
    if isinstance(a, sympy.MatrixBase | sympy.MatrixExpr) and isinstance(b, sympy.MatrixBase | sympy.MatrixExpr):
        a, b = a.doit(), b.doit()
        alike = isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase) and a.shape == b.shape
        return alike and all(numbers_equal(*cells) for cells in zip(a.flat(), b.flat(), strict=True))
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return bool(a == b)
    if _is_percent(a) != _is_percent(b) and _integer(a) is not None and _integer(a) == _integer(b):
        return True  # "5%" for "5"
    a, b = a.doit(), b.doit()
    if a == b:
        return True
    if a.free_symbols or b.free_symbols or not (a.has(sympy.Float) or b.has(sympy.Float)):
        return False
    size = max(abs(a.evalf(DIGITS)), abs(b.evalf(DIGITS)))
    allowed = max(min(ABSOLUTE, RELATIVE * size), FLOAT * size)
    return bool(abs(a.evalf(DIGITS) - b.evalf(DIGITS)) <= allowed)


def _is_percent(e: Any) -> bool:
    return isinstance(e, sympy.Mul) and e.args[1:] == (sympy.UnevaluatedExpr(sympy.Rational(1, 100)),)


def _integer(e: Any) -> Any:
    number = e.args[0] if _is_percent(e) else e
    return number if isinstance(number, sympy.Integer) else None
