"""Conditions on one number: inequalities, intervals and their unions are compared as sets of numbers."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

import sympy
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

SPLIT = re.compile(r",?\s*(?<![A-Za-z\\])(or|and)(?![A-Za-z])\s*|\s*\\(lor|land|vee|wedge)(?![A-Za-z])\s*")
RELATION = re.compile(r"[<>]|\\(?:[lg]e(?:q|qslant)?|neq?|[lg]t|in)(?![A-Za-z])")
BUILDER = re.compile(
    r"\\?(?:left)?\\?\{\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?)?\s*(?:\\mid|\\vert|\||:)\s*(.*?)\s*(?:\\right)?\\\}"
)
"""`\\{x \\mid x > 3\\}`."""


def alternatives(latex: str) -> tuple[list[str], type[Boolean]] | None:
    """Return the inequalities that a text joins by "or" or "and"; None for any other text."""
    parts = SPLIT.split(latex)
    conditions, words = parts[::3], {word for word in (*parts[1::3], *parts[2::3]) if word}
    if len(conditions) < 2 or not all(map(RELATION.search, conditions)):
        return None
    if words <= {"or", "lor", "vee"}:
        return conditions, sympy.Or
    return (conditions, sympy.And) if words <= {"and", "land", "wedge"} else None


def same_condition(reference: Any, answer: Any) -> bool:
    """Whether both are conditions or sets of numbers, not both plain values, and admit the same numbers."""
    wanted, given = _admitted(reference), _admitted(answer)
    if wanted is None or given is None or not (_is_condition(reference) or _is_condition(answer)):
        return False
    if _variables(reference) and _variables(answer) and _variables(reference) != _variables(answer):
        return False
    return bool(wanted == given or wanted.symmetric_difference(given).is_empty)


def _is_condition(e: Any) -> bool:
    return _is_relation(e) or (isinstance(e, sympy.Set) and not isinstance(e, sympy.FiniteSet))


def _is_relation(e: Any) -> bool:
    return isinstance(e, Boolean | Relational) and not isinstance(e, sympy.Symbol)


def _variables(e: Any) -> Any:
    if isinstance(e, sympy.Eq) and isinstance(e.rhs, sympy.Set):
        return e.lhs.free_symbols
    return e.free_symbols if _is_relation(e) else set()


def _admitted(e: Any) -> Any:
    """Return the set of real numbers that a condition on one variable admits; None for anything else."""
    if isinstance(e, sympy.Eq):
        return _exact(e.rhs) if isinstance(e.lhs, sympy.Symbol) and isinstance(e.rhs, sympy.Set) else None
    if isinstance(e, sympy.FiniteSet):
        return _all_of(e.args)
    if isinstance(e, sympy.Set):
        return _exact(e) if not e.free_symbols else None
    if not _is_relation(e) or len(e.free_symbols) != 1:
        return None
    if isinstance(e, sympy.And | sympy.Or):
        parts = [_admitted(part) for part in e.args]
        join = sympy.Intersection if isinstance(e, sympy.And) else sympy.Union
        return None if any(part is None for part in parts) else join(*parts)
    return _solved(e)


def _solved(relation: Any) -> Any:
    """Return the solutions of one inequality that is polynomial in its variable, or in its absolute value."""
    [variable] = relation.free_symbols
    difference = relation.lhs - relation.rhs
    bare = difference.replace(sympy.Abs, lambda inside: inside)
    if not bare.is_polynomial(variable) or sympy.degree(bare, variable) > 4:
        return None
    try:
        return type(relation)(*map(_rational, relation.args)).as_set()
    except (NotImplementedError, ValueError, TypeError):
        return None


def _all_of(parts: Any) -> Any:
    """Return what a list of inequalities admits: their intersection, or their union if that is empty."""
    if not all(isinstance(part, Relational) and not isinstance(part, sympy.Eq) for part in parts):
        return None
    sets = [_admitted(part) for part in parts]
    if any(one is None for one in sets) or len({part.free_symbols.pop() for part in parts if part.free_symbols}) != 1:
        return None
    together = reduce(sympy.Intersection, sets)
    return reduce(sympy.Union, sets) if together.is_empty else together


def _exact(e: Any) -> Any:
    return _rational(e).doit()


def _rational(e: Any) -> Any:
    return e.xreplace({number: sympy.Rational(str(number)) for number in e.atoms(sympy.Float)})
