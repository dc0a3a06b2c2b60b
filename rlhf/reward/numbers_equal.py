"""Whether two expressions are the same number: exactly where both are exact, to six digits where one is a decimal."""

from __future__ import annotations

from typing import Any

import sympy

ABSOLUTE, RELATIVE = 1e-6, 5e-6
"""Six decimals and six significant digits: with decimals alone, every number below a millionth would be 0."""
FLOAT = 1e-14
"""Rounding error of computing with a decimal."""
DIGITS, EXACT = 50, sympy.Float("1e-40")
"""Precision to which roots and functions are computed and compared."""


def numbers_equal(a: Any, b: Any, *_: int) -> bool:
    """Replace math-verify's `sympy_numeric_eq`. False if undecided: then the difference is simplified."""
    if isinstance(a, sympy.MatrixBase | sympy.MatrixExpr) and isinstance(b, sympy.MatrixBase | sympy.MatrixExpr):
        a, b = a.doit(), b.doit()
        alike = isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase) and a.shape == b.shape
        return alike and all(numbers_equal(*cells) for cells in zip(a.flat(), b.flat(), strict=True))
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return bool(a == b)
    if _is_percent(a) != _is_percent(b):
        a_number, b_number = (e.args[0] if _is_percent(e) else e for e in (a, b))
        if (_is_percent(a) or sympy.Ge(abs(a_number), 1) is sympy.true) and numbers_equal(a_number, b_number):
            return True  # "5%" for "5", but not "0.5%" for "0.5"
    a, b = a.doit(), b.doit()
    if a == b:
        return True
    values = [e.evalf(DIGITS) for e in (a, b)]
    sizes = [abs(value).evalf(DIGITS) for value in (*values, values[0] - values[1])]
    if (a.is_Rational and b.is_Rational) or not all(size.is_Float or size.is_Rational for size in sizes):
        return False
    size, apart = max(sizes[:2]), sizes[2]
    if a.has(sympy.Float) or b.has(sympy.Float):
        return bool(apart <= max(min(ABSOLUTE, RELATIVE * size), FLOAT * size))
    return bool(apart <= EXACT * size)


def _is_percent(e: Any) -> bool:
    return isinstance(e, sympy.Mul) and e.args[1:] == (sympy.UnevaluatedExpr(sympy.Rational(1, 100)),)
