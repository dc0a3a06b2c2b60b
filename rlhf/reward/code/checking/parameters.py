"""Functions of the tests in the process of the code: the library's are its own there, others have their parameters,
which code may count or name."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, NoReturn

Callee = Callable[[list[Any], dict[str, Any]], Any]
"""Takes positional arguments and named ones."""

LEFT_OUT = type("LeftOut", (), {"__repr__": lambda _: "a default of the test's"})()
"""The default of a parameter whose true one stays with the tests: it can change, or is no plain value."""
LARGEST_DEFAULT = 1 << 63
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


ASKED_FOR = "bool contains eq getitem iter len ne or repr ror"
"""Methods of a dictionary that say what is in it."""


def unsent(lose: Callable[[], NoReturn]) -> dict[str, Any]:
    """Annotations that nobody has. `lose` is called where the code asks for them."""
    asked = [*(f"__{name}__" for name in ASKED_FOR.split()), "copy", "get", "items", "keys", "pop", "values"]
    annotations: dict[str, Any] = type("Unsent", (dict,), {name: lambda *_: lose() for name in asked})()
    return annotations


def parameters_of(function: FunctionType) -> list[list[Any]]:
    """Name, kind and default of each parameter, as JSON: None for none, an empty list for one that is left out."""
    bare = FunctionType(function.__code__, {}, function.__name__, function.__defaults__, function.__closure__)
    bare.__kwdefaults__ = function.__kwdefaults__
    found = inspect.signature(bare).parameters.values()  # not by its attributes, which the code may set
    return [[one.name, int(one.kind), None if one.default is one.empty else _default(one.default)] for one in found]


def _default(value: Any) -> list[Any]:
    is_number = type(value) in (int, float) and abs(value) < LARGEST_DEFAULT
    is_sent = is_number or value is None or type(value) is bool or (type(value) is str and repr(LEFT_OUT) not in value)
    return [value] if is_sent else []


def library_name(value: Any) -> tuple[str, ...]:
    """Module and name of a function or class of Python's library; empty for any other, such as one that took another's
    name."""
    if type(value) not in (type, FunctionType, BuiltinFunctionType, MethodDescriptorType):
        return ()
    has_it = value.__objclass__ if type(value) is MethodDescriptorType else value
    module, name = has_it.__module__, value.__qualname__
    try:
        known = module in sys.stdlib_module_names and operator.attrgetter(name)(sys.modules[module]) is value
    except (AttributeError, KeyError):
        known = False
    return (module, name) if known else ()


def with_parameters(parameters: list[list[Any]], call: Callee) -> Callable[..., Any]:
    """A function with these parameters that hands what it is given to `call`."""

    def given(values: dict[str, Any]) -> Any:
        arguments: list[Any] = []
        named: dict[str, Any] = {}
        is_left_out = False
        for name, kind, _ in parameters:
            value = values[name]
            if kind == inspect.Parameter.VAR_POSITIONAL:
                arguments += value
            elif kind == inspect.Parameter.VAR_KEYWORD:
                named |= value
            elif value is LEFT_OUT:
                is_left_out = True
            elif kind in POSITIONAL and not is_left_out:
                arguments.append(value)
            else:
                named[name] = value
        return call(arguments, named)

    empty = inspect.Parameter.empty
    listed = [
        inspect.Parameter(name, inspect._ParameterKind(kind), default=empty if told is None else [*told, LEFT_OUT][0])
        for name, kind, told in parameters
    ]
    scope: dict[str, Any] = {"_rlhf_given": given, "_rlhf_left_out": LEFT_OUT, "_rlhf_locals": locals}
    text = str(inspect.Signature(listed)).replace(repr(LEFT_OUT), "_rlhf_left_out")
    exec(f"def function{text}: return _rlhf_given(_rlhf_locals())", scope)
    function: Callable[..., Any] = scope.pop("function")  # else it would live for its own globals
    return function
