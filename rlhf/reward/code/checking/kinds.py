"""Kinds of plain values: values whose class in the code is a subclass of a plain type."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import typing
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial, partialmethod
from types import FunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import Any


def _sliced(kind: Any, value: Any) -> Any:
    return kind.__getitem__(value, slice(None))


BASES: dict[Any, Callable[[Any], Any]] = {
    **{kind: kind.__pos__ for kind in (int, float, complex)},
    **{kind: partial(_sliced, kind) for kind in (str, bytes, tuple, list, bytearray)},
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
"""What a value of a kind of these types is beneath its class: no method of the class takes part."""
CHANGEABLE = (dict, list, set, bytearray)
SHOWN = ("__repr__", "__str__", "__format__")
OWN_ANYWAY = {*SHOWN, *("__module__", "__doc__", "__dict__", "__new__", "__init__", "__reduce_ex__", "__getnewargs__")}
SAYS_ONLY = frozenset(
    f"__{name}__"
    for name in (
        *("slots", "annotations", "annotate", "annotate_func", "annotations_cache", "static_attributes", "firstlineno"),
        *("match_args", "qualname", "orig_bases", "parameters", "type_params", "weakref", "init_subclass"),
        *("class_getitem", "post_init", "dataclass_fields", "dataclass_params", "replace", "set_name"),
    )
)
"""What a class has of these says something of the class, and does nothing for its values."""
LIBRARY = frozenset(
    value
    for module in (enum, collections, typing, abc)
    for value in vars(module).values()
    if isinstance(value, type) and value.__module__ == module.__name__
)
"""Classes of Python's library from which kinds are made."""
COPIES = ("copy", "__copy__", "__or__", "__ror__")
"""Methods of `defaultdict` whose answer has the default too."""
NUMBER = "_rlhf_number"
BINDS = ("__get__", "__set__", "__delete__", "__set_name__")
"""What a descriptor has one of at least."""
FUNCTIONS = (FunctionType, MethodDescriptorType, WrapperDescriptorType, type(functools.lru_cache(len)))
"""Python binds them where they are attributes of a class."""
BOUND = (MethodType, staticmethod)
"""They stay what they are there."""
ALIKE = (int, float, complex, str, bytes)
"""Plain types whose values stay what they are: a kind of them is one value, however often it is answered."""


def plain_kind(value: Any) -> Any:
    """The plain type that a value of a subclass is a value of: a named tuple, the number of an enumeration. None where
    its class has methods in the place of the plain type's, or is a changeable type's with methods of its own, or is one
    of `OrderedDict` or `Counter`, which compare otherwise: it is an object. For the code's side."""
    kind = type(value)
    base = next((base for base in BASES if isinstance(value, base)), None)
    if base is None:
        return None
    classes = [above for above in kind.__mro__ if above not in base.__mro__]
    library = [above for above in classes if above in LIBRARY]
    named = [(name, value) for above in classes if above not in library for name, value in vars(above).items()]
    own = {name for name, value in named if not any(getattr(of, name, None) is value for of in library)} - OWN_ANYWAY
    changes = base in CHANGEABLE and any(not name.startswith("_") for name in own)
    acts = any(hasattr(base, name) or (name.startswith("__") and name not in SAYS_ONLY) for name in own)
    return None if changes or acts or isinstance(value, OrderedDict | Counter) else base


def reference_kind(value: Any) -> str:
    """As which kind of reference a value crosses that is not plain: whether it is called, and what becomes of it as
    an attribute of a class. For the code's side."""
    kind: Any = type(value)
    if callable(value) and (kind in BOUND or not any(hasattr(kind, name) for name in BINDS)):
        return "callable"
    if kind in FUNCTIONS:
        return "function"
    called = "callable " if callable(value) else ""
    return f"{called}descriptor" if any(hasattr(kind, name) for name in BINDS) else "object"


def kin_of(base: Any, link: Any) -> Any:
    """The type for values whose type in the code is a subclass of `base`: their `base` value is known, and what else
    they have is asked of the code's object, where that cannot change."""

    def asked(this: Any, name: str) -> Any:
        if base in CHANGEABLE or name.startswith("__"):
            return refused(this, name)
        return link.ask("attribute", (this, name), {})

    def refused(this: Any, name: Any, *more: Any) -> Any:
        return link.refuse(f"a test asks a kind of {base.__name__} for {name!r}")

    def shown(this: Any, *more: Any) -> Any:
        return link.refuse(f"a test shows a kind of {base.__name__} of the code")

    methods: dict[str, Any] = {"__getattr__": asked, "__setattr__": refused, **dict.fromkeys(SHOWN, shown)}
    if base is dict:  # a default of the code's
        methods |= {name: partialmethod(refused, name) for name in COPIES}
    if base in CHANGEABLE:  # what asks for the class where it is not the base: `isinstance` of the library
        methods["__class__"] = property(lambda this: refused(this, "__class__"))
    return type(
        f"KindOf{base.__name__.capitalize()}", (base,), methods | ({"__missing__": refused} if base is dict else {})
    )
