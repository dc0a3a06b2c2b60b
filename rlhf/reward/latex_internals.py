"""Names that latex2sympy2_extended does not promise to keep: a new latex2sympy2_extended breaks this page."""

from __future__ import annotations

from typing import Any

from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy
from latex2sympy2_extended.sets import FiniteSet

LatexReader = _Latex2Sympy


def written_items(found: FiniteSet) -> tuple[Any, ...]:
    """Return the items of a set as written, also those that are there several times."""
    return tuple(found._unsorted_args)
