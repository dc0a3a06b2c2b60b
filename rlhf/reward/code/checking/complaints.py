"""What Python raises over an object of the code where it would raise nothing, or something else, over the object
itself; and exceptions in a line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from rlhf.reward.code.checking.exceptions import ARGS, ORIGIN, TEXT
from rlhf.reward.code.checking.stand_ins import STAND_INS, KindOfExceptions, KindOfStandIn

ABOUT_OBJECTS = (
    *(kind.__name__ for kind in STAND_INS.values()),
    "do not inherit from BaseException",
    "must derive from BaseException",
    "object supporting the buffer API required",
)
"""Python's error messages for unsupported operations, and for `except` with a class of the code."""


def is_about_an_object(error: BaseException | None) -> bool:
    """Whether Python has raised it over an object of the code, over an exception that has not all that the code's own
    has, or over a file, which the tests do not share with the code."""
    if not isinstance(error, TypeError | ValueError | AttributeError | OSError) or ORIGIN in vars(error):
        return False
    if isinstance(error, OSError):
        return error.filename is not None
    obj = error.obj if isinstance(error, AttributeError) else None
    lacks = issubclass(type(obj), BaseException) and ORIGIN in vars(obj)
    told = [text for text in ARGS.__get__(error) if type(text) is str]
    return lacks or any(words in text for text in told for words in ABOUT_OBJECTS)


def handled() -> None:
    """Refuse what a test handles if it is about an object of the code."""
    _look_at(sys.exc_info()[1])


def look_at_what_is_awaited() -> None:
    """The contexts of the library in which a test awaits an exception look at it before they take it."""
    awaiting: list[Any] = [contextlib.suppress]
    if "unittest" in sys.modules:
        awaiting.append(sys.modules["unittest"].case._AssertRaisesContext)
    if "pytest" in sys.modules:
        awaiting.append(type(sys.modules["pytest"].raises(Exception)))
    for context in awaiting:
        context.__exit__ = _looking(context.__exit__)


def _looking(leave: Callable[..., Any]) -> Callable[..., Any]:
    def looking(this: Any, *raised: Any) -> Any:
        _look_at(raised[1])
        return leave(this, *raised)

    return looking


def _look_at(error: BaseException | None) -> None:
    if any(map(is_about_an_object, error.exceptions if isinstance(error, BaseExceptionGroup) else (error,))):
        KindOfStandIn.link.refuse("a test awaits an exception, and Python has raised one over what the code has")


def args_of(value: Any) -> Any:
    """What `value.args` is in a test."""
    of_the_table = issubclass(type(value), BaseException) and type(type(value)) is not KindOfExceptions
    if of_the_table and ORIGIN in vars(value) and TEXT in vars(value):
        KindOfStandIn.link.refuse("a test asks what an exception was made of, which is no plain value")
    return value.args


def in_a_line(error: BaseException) -> str:
    """An exception in one printable line."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an object of the code is part of it, and is not shown
        text = "about an object of the code"
    line = " ".join(f"{type(error).__name__}: {text}".split())[:300]
    return "".join(letter if letter.isprintable() else "?" for letter in line)
