"""Exceptions and their classes on their way between the process of the tests and that of the code: those of a table
by name, others by their own name and what they derive from. Nothing is looked up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from rlhf.reward.code.checking.values import EXCEPTIONS, Met, NoValue, nothing_else, pack_value, unpack_value

TEXT, ORIGIN = "_rlhf_text", "_rlhf_origin"
"""Attributes of an exception that has arrived: what it says, and what it is in the process that raised it."""
LONGEST_TEXT, LONGEST_NAME, MOST_BASES, MOST_CLASSES = 10_000, 200, 8, 50
TABLE: Mapping[str, type[BaseException]] = EXCEPTIONS | {"BaseException": BaseException}
ARGS: Any = vars(BaseException)["args"]
"""What an exception was made of here: of one of the code's, `args` would ask the code."""
Make = Callable[[Any, str, tuple[Any, ...]], Any]
"""Makes a class of its number in the other process, its name and what it derives from."""


def class_value(kind: type[BaseException], number: Callable[[Any], Any]) -> Any:
    """A class of exceptions: its name in the table, or what `number` says of it, its name, and what it derives from."""
    if TABLE.get(kind.__name__) is kind:
        return kind.__name__
    above = [class_value(base, number) for base in kind.__bases__ if issubclass(base, BaseException)]
    return [number(kind), kind.__name__[:LONGEST_NAME], above]


def class_of(told: Any, make: Make, left: list[None] | None = None) -> Any:
    """The class that was told. Raises `NoValue`."""
    if type(told) is str:
        if told not in TABLE:
            raise NoValue("what arrived is no exception")
        return TABLE[told]
    left = [None] * MOST_CLASSES if left is None else left
    if type(told) is not list or len(told) != 3 or not left:
        raise NoValue("what arrived is no exception")
    number, name, above = told
    fits = type(name) is str and name.isidentifier() and len(name) <= LONGEST_NAME
    if not fits or type(above) is not list or not 0 < len(above) <= MOST_BASES:
        raise NoValue("what arrived is no class")
    left.pop()
    bases = tuple(class_of(one, make, left) for one in above)
    try:
        return make(number, name, bases)
    except TypeError:  # bases that do not go together
        raise NoValue("what arrived is no class") from None


def text_of(error: BaseException) -> str:
    """What an exception says."""
    args = ARGS.__get__(error)
    return _text(args[0] if len(args) == 1 and type(args[0]) is str and _says_so(error) else error)


def exception_value(error: BaseException, number: Callable[[Any], Any]) -> dict[str, Any]:
    """An exception by its class, and what it says. With what it was made of, where that is plain and all that its text
    says."""
    told: dict[str, Any] = {"raised": class_value(type(error), number), "text": text_of(error)}
    with contextlib.suppress(BaseException):  # it is made of what an exception of the code says that it is made of
        if _says_so(error):
            told["made_of"] = pack_value(tuple(error.__reduce__()[1]), nothing_else, Met())
    return told


def _says_so(error: BaseException) -> bool:
    """Whether its text is that of a class of the table."""
    kind: Any = next(kind for kind in type(error).__mro__ if TABLE.get(kind.__name__) is kind)
    return type(error).__str__ is kind.__str__


def _text(words: Any) -> str:
    try:
        return str(words)[:LONGEST_TEXT]
    except BaseException:  # noqa: BLE001 - an exception of the code that cannot be shown
        return ""


def exception(told: Mapping[str, Any], origin: Any, make: Make) -> BaseException:
    """The exception that was told. One that cannot be made of what was told is an `Exception` of a class that nothing
    awaits. Raises `NoValue`."""
    text, kind = told.get("text") if type(told.get("text")) is str else "", class_of(told.get("raised"), make)
    try:
        given = unpack_value(told["made_of"], nothing_else, Met()) if "made_of" in told else (text,)
        made = _made(kind, given)
    except (NoValue, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # says its class
        made = _made(make(None, "ExceptionOfAnotherClass", (Exception,)), (text,))
    vars(made).update({ORIGIN: origin} if "made_of" in told else {ORIGIN: origin, TEXT: text})
    return made


def _made(kind: Any, given: Any) -> BaseException:
    """An exception of that class. Of an error of encoding the place has to be in its text: Python reads there without
    looking, to show it."""
    made: Any = type.__call__(kind, *given)
    encoding = isinstance(made, UnicodeDecodeError | UnicodeEncodeError | UnicodeTranslateError)
    if encoding and not 0 <= made.start <= made.end <= len(made.object):
        raise ValueError
    error: BaseException = made
    return error


def says(error: BaseException) -> str:
    """The `__str__` of classes that are made here."""
    text = vars(error).get(TEXT)
    if text is not None:
        return str(text)
    kind: Any = next(kind for kind in type(error).__mro__ if TABLE.get(kind.__name__) is kind)
    return str(kind.__str__(error))
