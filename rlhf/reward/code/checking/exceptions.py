"""Exceptions on their way between the process of the tests and that of the code: by the nearest class of a table,
and the name of their own class. Nothing is looked up."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rlhf.reward.code.checking.values import EXCEPTIONS, Met, NoValue, nothing_else, pack_value, unpack_value

TEXT, ORIGIN = "_rlhf_text", "_rlhf_origin"
"""Attributes of an exception that has arrived: what it says, and what it is in the process that raised it."""
LONGEST_TEXT, LONGEST_NAME = 10_000, 200
NO_METHODS: Mapping[str, Any] = MappingProxyType({})
OWN: dict[tuple[type[BaseException], str], type[BaseException]] = {}
"""For a class of the table, and the name of one that the other process derives from it, what stands for the latter."""


def exception_value(error: BaseException) -> dict[str, Any]:
    """An exception by the nearest of its classes that is in the table, what it says, and its class's name if that is
    another. With what it was made of, where that is plain and all that its text says."""
    kind: Any = next((kind for kind in type(error).__mro__ if EXCEPTIONS.get(kind.__name__) is kind), None)
    kind = kind or (Exception if isinstance(error, Exception) else BaseException)
    says_so = type(error).__str__ is kind.__str__
    words = error.args[0] if says_so and len(error.args) == 1 and type(error.args[0]) is str else error
    told: dict[str, Any] = {"raised": kind.__name__, "text": _text(words)}
    if type(error) is not kind:
        told["own"] = type(error).__name__[:LONGEST_NAME]
    with contextlib.suppress(BaseException):  # it is made of what an exception of the code says that it is made of
        if says_so:
            told["made_of"] = pack_value(tuple(error.__reduce__()[1]), nothing_else, Met())
    return told


def _text(words: Any) -> str:
    try:
        return str(words)[:LONGEST_TEXT]
    except BaseException:  # noqa: BLE001 - an exception of the code that cannot be shown
        return ""


def exception(told: Mapping[str, Any], origin: Any, methods: Mapping[str, Any] = NO_METHODS) -> BaseException:
    """The exception that was told, of the class of the table, or of one that is derived from it and has `methods`. What
    is told wrongly is an `Exception` of another class, which nothing awaits."""
    name, text, own = (
        one if type(one) is str else "" for one in (told.get("raised"), told.get("text"), told.get("own"))
    )
    kind = EXCEPTIONS.get(name, BaseException if name == "BaseException" else Exception)
    if own or kind.__name__ != name:
        kind = _own(kind, own, methods)
    try:
        made = kind(*unpack_value(told["made_of"], nothing_else, Met())) if "made_of" in told else kind(text)
        made = made if _within_its_text(made) else _own(Exception, own, methods)(text)
    except (NoValue, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # says its class
        made = _own(Exception, own, methods)(text)
    vars(made).update({ORIGIN: origin} if "made_of" in told else {ORIGIN: origin, TEXT: text})
    return made


def _own(kind: type[BaseException], name: str, methods: Mapping[str, Any]) -> type[BaseException]:
    name = name if name.isidentifier() and len(name) <= LONGEST_NAME else "ExceptionOfAnotherClass"

    def says(this: BaseException) -> str:
        text = vars(this).get(TEXT)
        return str(kind.__str__(this)) if text is None else text

    return OWN.setdefault((kind, name), type(name, (kind,), {"__str__": says, **methods}))


def _within_its_text(error: BaseException) -> bool:
    """Of an error of encoding, whether its place is in its text: Python reads there without looking, to show it."""
    if not isinstance(error, UnicodeDecodeError | UnicodeEncodeError | UnicodeTranslateError):
        return True
    return 0 <= error.start <= error.end <= len(error.object)
