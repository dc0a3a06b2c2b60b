"""What tests call as Python's own `type`, `isinstance`, `callable`, `getattr`, `id` and `is`: the code is asked about
its objects."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, UnionType
from typing import Any

from rlhf.reward.code.checking.arrays import parts_of_number
from rlhf.reward.code.checking.exceptions import NUMBER, ClassOfTheCode, is_from_the_code
from rlhf.reward.code.checking.kinds import is_of_the_code
from rlhf.reward.code.checking.link import Link
from rlhf.reward.code.checking.objects import Remote
from rlhf.reward.code.checking.values import IMMUTABLE, NAMED

ELSEWHERE = 1 << 64


def type_by(link: Link) -> Callable[..., Any]:
    """What tests call as `type`, or take as `__class__`: the code answers for its objects."""

    def class_of(value: Any, called: Any = type) -> Any:
        if called is type and is_of_the_code(value):
            return link.ask("class", value)
        kind = called(value)
        return type if kind is ClassOfTheCode else kind

    return class_of


def pair_by(link: Link) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Two values of which a test asks whether they are one, unless nobody can tell."""

    def pair(one: Any, other: Any) -> tuple[Any, Any]:
        both = {type(one), type(other)}
        if (
            one is not other
            and len(both) == 1
            and ((_is_immutable(one) and one == other) or (is_from_the_code(one) and is_from_the_code(other)))
        ):
            link.refuse("a test asks whether two equal values are one")
        if is_of_the_code(one) != is_of_the_code(other) and _is_of_the_library(other if is_of_the_code(one) else one):
            link.refuse("a test asks whether an object of the code is one of the library")
        return one, other

    return pair


def pair_first(case: Any, pair: Callable[[Any, Any], Any]) -> None:
    """Have `assertIs` and `assertIsNot` of a class of `unittest` ask the same."""

    def asking(method: Any) -> Any:
        def checked(self: Any, expr1: Any, expr2: Any, msg: Any = None) -> None:
            pair(expr1, expr2)
            method(self, expr1, expr2, msg)

        return checked

    case.assertIs, case.assertIsNot = asking(case.assertIs), asking(case.assertIsNot)


def _is_of_the_library(value: Any) -> bool:
    """Whether both processes have it, each for itself, and it does not cross as what it is."""
    kinds = FunctionType | BuiltinFunctionType | MethodDescriptorType | ModuleType | type
    of = value if isinstance(value, kinds) else type(value)
    return id(of) not in NAMED and getattr(of, "__module__", "") != "tests"


def _is_immutable(value: Any) -> bool:
    return type(value) in IMMUTABLE or parts_of_number(value) is not None


def identity_by(link: Link) -> Callable[[Any], int]:
    """Python's `id`, which the code answers for its objects, in numbers that no address here has."""

    def identity(value: Any) -> int:
        if _is_immutable(value) or is_from_the_code(value):
            link.refuse(f"a test asks for the identity of a {type(value).__name__}")
        link.held.append(value)  # else the next may lie in its place
        return ELSEWHERE + int(link.ask("id", value)) if is_of_the_code(value) else id(value)

    return identity


def awaited_by(link: Link) -> Callable[[Any], Any]:
    """The exceptions that a test handles under names that are not Python's: none of them may be what its own asserts
    raise."""

    def awaited(kinds: Any) -> Any:
        for kind in _flat(kinds):
            if any(kind is one for one in AssertionError.__mro__):
                link.refuse(
                    f"the code's name of an exception is Python's {kind.__name__}, which a test's own asserts raise"
                )
        return kinds

    return awaited


def _flat(kinds: Any) -> Iterator[Any]:
    for kind in kinds if isinstance(kinds, tuple) else ():
        yield from _flat(kind)
    if not isinstance(kinds, tuple):
        yield kinds


def callable_by(link: Link) -> Callable[[Any], Any]:
    """Python's `callable`, which the code answers for its objects."""
    return lambda value: link.ask("callable", value) if is_of_the_code(value) else callable(value)


def instance_by(link: Link) -> Callable[[Any, Any], bool]:
    """Python's `isinstance`, which the code answers for its objects."""

    def is_instance(value: Any, kinds: Any) -> bool:
        if not is_of_the_code(value):
            return isinstance(value, kinds)
        kinds = typing.get_args(kinds) if typing.get_origin(kinds) in (typing.Union, UnionType) else kinds
        if isinstance(kinds, tuple):
            return any(is_instance(value, kind) for kind in kinds)
        if type(kinds) is Remote or id(kinds) in NAMED or NUMBER in vars(kinds):
            return bool(link.ask("instance", value, kinds))
        if kinds.__module__ != "tests":
            return bool(link.ask("instance of", value, *named_kind(kinds)))
        if type(kinds) not in (type, ClassOfTheCode):  # which decides for itself, by what an object has
            link.refuse(f"a test asks whether an object of the code is of its own {kinds.__name__}")
        return False

    return is_instance


def subclass_by(link: Link) -> Callable[[Any, Any], bool]:
    """Python's `issubclass`, which the code answers for its classes, but for those of exceptions."""

    def is_subclass(one: Any, kinds: Any) -> bool:
        if type(one) is not Remote:
            return issubclass(one, kinds)
        if isinstance(kinds, tuple):
            return any(is_subclass(one, kind) for kind in kinds)
        if type(kinds) is Remote or id(kinds) in NAMED:
            return bool(link.ask("subclass", one, kinds))
        if kinds.__module__ == "tests":
            link.refuse(f"a test asks whether a class of the code is of its own {kinds.__name__}")
        return bool(link.ask("subclass of", one, *named_kind(kinds)))

    return is_subclass


def named_kind(kind: Any) -> tuple[str, str]:
    """Module and name of a class, or of an alias of one that `typing` has. Raises `TypeError`."""
    kind = getattr(kind, "__origin__", kind)
    if not issubclass(type(kind), type):
        raise TypeError("isinstance() arg 2 must be a type, a tuple of types, or a union")
    of_types = next((name for name, one in vars(types).items() if one is kind), "")
    return ("types", of_types) if of_types else (kind.__module__, kind.__qualname__)


def attribute_by(link: Link) -> Callable[..., Any]:
    """Python's `getattr`, for which the code may name nothing that Python has for itself."""

    def attribute(of: Any, name: str, *default: Any) -> Any:
        if name.startswith("_") and type(of) is not Remote:
            link.refuse(f"a test takes {name} by its name")
        return getattr(of, name, *default)

    return attribute
