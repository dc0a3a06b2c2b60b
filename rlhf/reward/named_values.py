"""Answers of several values under names, such as `x=2, y=-1`, in whatever order they are written."""

from __future__ import annotations

from typing import Any

import sympy
from latex2sympy2_extended.sets import FiniteSet
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from rlhf.reward.latex_internals import written_items


def by_name(reference: list[Any], answer: list[Any]) -> list[Any]:
    """Return the `answer` with its values in the order of the reference's names, without names. Empty where the names
    are others, or the reference is a condition and the answer a list of numbers."""
    wanted, given = _named(reference), _named(answer)
    if wanted and given:
        return [sympy.Tuple(*(given[name] for name in wanted))] if wanted.keys() == given.keys() else []
    if wanted:
        values = _in_order(answer)
        return [] if any(isinstance(value, Relational) for value in values) else [sympy.Tuple(*values)]
    if given and _is_pair(reference):
        return [sympy.Tuple(*given.values())]
    return [] if _is_condition(reference) and _is_list_of_numbers(answer) else answer


def without_names(reference: list[Any]) -> list[Any]:
    """Return the `reference` as the tuple of its values where they have names."""
    named = _named(reference)
    return [sympy.Tuple(*named.values())] if named else reference


def _named(expressions: list[Any]) -> dict[Any, Any]:
    """Return the values under their names, as written; empty unless each of at least two values has a name."""
    if len(expressions) != 1:
        return {}
    whole = expressions[0]
    if isinstance(whole, sympy.Eq) and all(_is_pair([side]) for side in whole.args):
        names, values = (_in_order([side]) for side in whole.args)
        pairs = list(zip(names, values, strict=True)) if len(names) == len(values) else []
    elif isinstance(whole, sympy.FiniteSet) and all(isinstance(part, sympy.Eq) for part in whole.args):
        pairs = [part.args for part in _in_order(expressions)]
    else:
        pairs = []
    named = {name: value for name, value in pairs if isinstance(name, sympy.Symbol | sympy.Function)}
    return named if len(named) == len(pairs) > 1 else {}


def _in_order(answer: list[Any]) -> tuple[Any, ...]:
    """Return the items of a list of values, as written; a pair in parentheses is read as an open interval."""
    if len(answer) == 1:
        whole = answer[0]
        if isinstance(whole, FiniteSet):
            return written_items(whole)
        if isinstance(whole, sympy.Tuple | sympy.FiniteSet):
            return tuple(whole.args)
        if _is_pair(answer):
            return (whole.start, whole.end)
    return tuple(answer)


def _is_pair(answer: list[Any]) -> bool:
    whole = answer[0] if len(answer) == 1 else None
    return isinstance(whole, sympy.Tuple) or (isinstance(whole, sympy.Interval) and bool(whole.is_open))


def _is_condition(reference: list[Any]) -> bool:
    """Such as `1 < x < 2`; an equation is the value that it states."""
    whole = reference[0]
    if isinstance(whole, sympy.Eq):
        return isinstance(whole.rhs, sympy.Interval | sympy.Union)
    return isinstance(whole, Boolean | Relational) and not whole.has(sympy.Eq)


def _is_list_of_numbers(answer: list[Any]) -> bool:
    values = _in_order(answer)
    return (
        len(values) > 1 and all(isinstance(getattr(v, "rhs", v), sympy.Expr) for v in values) and not _is_pair(answer)
    )
