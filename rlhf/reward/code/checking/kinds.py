"""Kinds of plain values: instances of the code's subclasses (named tuples, enumerations of numbers or texts). They are
compared as the plain values that they hold; what else they have is asked of the code."""

from __future__ import annotations

from typing import Any

from rlhf.reward.code.checking.objects import COMPARED, COMPUTED, Remote

BASES: tuple[Any, ...] = (tuple, int, str, float)
ORIGIN = "_rlhf_origin"
OPERATIONS = frozenset(
    f"__{name}__" for name in (*COMPARED.split(), *COMPUTED.split(), "len", "iter", "getitem", "contains", "reversed")
)
"""A kind that has one of these, or a method of the plain type, in a way of its own is an object like any other."""


class _Kind:
    """What a kind has beyond its plain value: the code's own object."""

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)[ORIGIN], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)[ORIGIN], name, value)

    def __repr__(self) -> str:
        return repr(vars(self)[ORIGIN])

    def __str__(self) -> str:
        return str(vars(self)[ORIGIN])

    def __format__(self, how: str) -> str:
        return format(vars(self)[ORIGIN], how)


KINDS: dict[type, Any] = {base: type(f"kind of {base.__name__}", (_Kind, base), {}) for base in BASES}


def plain_part(value: Any) -> Any:
    """The plain value that a kind of it is equal to; None for anything else."""
    kind: Any = type(value)
    for base in (one for one in BASES if isinstance(value, one)):
        above = kind.__mro__[: kind.__mro__.index(base)]
        own = {name for one in above for name, value in vars(one).items() if not is_of_enumerations(value)}
        if own.isdisjoint(OPERATIONS) and not any(name in own for name in dir(base) if not name.startswith("_")):
            return tuple.__getitem__(value, slice(None)) if base is tuple else base.__getnewargs__(value)[0]
    return None


def is_of_enumerations(value: Any) -> bool:
    """Whether it is a method that the library gives enumerations: it computes as the plain type does."""
    return getattr(value, "__module__", "") == "enum"


def is_of_the_code(value: Any) -> bool:
    """Whether the code has more of it than this process."""
    return type(value) is Remote or type(value) in KINDS.values()


def kind_of(plain: Any, origin: Remote) -> Any:
    """The kind that is equal to `plain`, one for each object of the code. Raises `KeyError`."""
    kind = KINDS[type(plain)]
    if origin._rlhf_kind is None:
        made = kind(plain)
        vars(made)[ORIGIN] = origin
        object.__setattr__(origin, "_rlhf_kind", made)
    return origin._rlhf_kind
