"""Exceptions and their classes as they cross: Python's own by name, others by a number, their name and what they derive
from."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rlhf.reward.code.checking.kinds import ORIGIN
from rlhf.reward.code.checking.objects import Asked
from rlhf.reward.code.checking.values import BUILTINS, NoValue

EXCEPTIONS: Mapping[str, Any] = {
    name: kind
    for name, kind in BUILTINS.items()
    if isinstance(kind, type) and issubclass(kind, Exception) and name != "ExceptionGroup"
} | {kind.__name__: kind for kind in (BaseException, GeneratorExit, KeyboardInterrupt, SystemExit)}
LIBRARY = frozenset(
    (
        *("json.JSONDecodeError", "queue.Empty", "queue.Full", "decimal.InvalidOperation", "decimal.DivisionByZero"),
        *("decimal.Overflow", "statistics.StatisticsError", "struct.error", "re.error", "re.PatternError", "csv.Error"),
        *("binascii.Error", "zlib.error", "dataclasses.FrozenInstanceError", "graphlib.CycleError", "copy.Error"),
        *("ipaddress.AddressValueError", "ipaddress.NetmaskValueError", "zoneinfo.ZoneInfoNotFoundError"),
        *("asyncio.QueueEmpty", "asyncio.QueueFull", "decimal.FloatOperation", "decimal.Inexact"),
        *("numpy.exceptions.AxisError", "numpy.linalg.LinAlgError"),
    )
)
"""Exceptions of the library. Where the tests' process has not loaded the module, no test awaits them."""
TEXT, NUMBER, LINK = "_rlhf_text", "_rlhf_number", "_rlhf_link"
LONGEST_TEXT, LONGEST_NAME, MOST_CLASSES = 10_000, 200, 20
UNICODE = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)


class ClassOfTheCode(type):
    """A class of exceptions whose attributes the code has."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        kind = _of_the_code(cls)
        return vars(kind)[LINK].ask("attribute", kind, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if LINK in vars(cls):
            vars(cls)[LINK].ask("setattr", cls, name, value)
        else:
            type.__setattr__(cls, name, value)


def told_class(kind: type, number: Callable[[Any], int]) -> list[Any]:
    """A class of exceptions: the numbers and names of those in its line that are not Python's own, those of the library
    by their names there too, and the first that is Python's own. What derives from something else than the next in the
    line says from what."""
    line = [one for one in kind.__mro__ if issubclass(one, BaseException)]
    own = [one for one in line if not _is_of_python(one)]
    first = next(one.__name__ for one in line if _is_of_python(one))
    following: list[Any] = [*map(number, own[1:]), first]
    told: list[Any] = []
    for one, after in zip(own, following, strict=False):
        in_library = next((name for name in LIBRARY if _loaded(name) is one), "")
        above = [base for base in one.__bases__ if base in line]
        bases = [base.__name__ if _is_of_python(base) else number(base) for base in above]
        told.append([number(one), one.__name__[:LONGEST_NAME], in_library, *(bases if bases != [after] else [])])
    return [*told, first]


def _is_of_python(kind: type) -> bool:
    return EXCEPTIONS.get(kind.__name__) is kind


def _loaded(name: str) -> Any:
    """The class of that name in the library, if its module is loaded."""
    module, _, own = name.rpartition(".")
    return getattr(sys.modules.get(module), own, None)


def found_class(told: Any, known: dict[int, Any], link: Asked | None = None) -> Any:
    """The class that was told, made here at its first occurrence; where there is a `link` to the code, that makes
    exceptions of it, and has its attributes. Raises `NoValue`."""
    if type(told) is not list or not 0 < len(told) <= MOST_CLASSES or type(told[-1]) is not str:
        raise NoValue("what arrived is no exception")
    *line, named = told
    if (kind := EXCEPTIONS.get(named)) is None:
        raise NoValue("what arrived is no exception")
    for one in reversed(line):
        match one:
            case [number, str(name), str(in_library), *bases] if type(number) is int and name.isidentifier():
                kind = known[number] = _class_of((number, name, in_library), bases or [kind], known, link)
            case _:
                raise NoValue("what arrived is no class")
    return kind


def _class_of(told: tuple[int, str, str], bases: list[Any], known: dict[int, Any], link: Asked | None) -> Any:
    number, name, in_library = told
    if in_library in LIBRARY and _loaded(in_library):
        return _loaded(in_library)
    if number in known:
        return known[number]
    own = {"__str__": _says, "__repr__": _shows, "__getattr__": _of_origin, NUMBER: number}
    try:
        found: dict[type, Any] = {int: known, str: EXCEPTIONS}
        above = tuple(found[type(base)][base] if type(base) in found else base for base in bases)
        return (ClassOfTheCode if link else type)(name, above, own | (_asking(link) if link else {}))
    except (LookupError, TypeError):
        raise NoValue("what arrived is no class") from None


def _of_the_code(kind: type) -> Any:
    return next(one for one in kind.__mro__ if NUMBER in vars(one))


def _asking(link: Asked) -> dict[str, Any]:
    """What a class has for which the code is to be asked, or the test refused."""

    def init(error: Any, *args: Any, **named: Any) -> None:
        kind = _of_the_code(type(error))
        origin = link.ask("call", kind, *args, named=named)
        vars(error).update({TEXT: str(origin), ORIGIN: origin})
        error.args = origin.args
        _initialize(kind, error, error.args)

    def is_equal(error: Any, other: Any) -> bool:
        return error is other or link.refuse("a test compares an exception of the code")

    return {"__init__": init, "__eq__": is_equal, "__hash__": BaseException.__hash__, LINK: link}


def told_exception(
    error: BaseException, number: Callable[[Any], int], is_plain: Callable[[Any], bool]
) -> tuple[dict[str, Any], list[Any]]:
    """An exception: its class and what it says; and what it was made of and its attributes where those are values, and,
    of a class of the code, itself, to be asked for what else it has."""
    told = told_class(type(error), number)
    is_own = type(told[0]) is list and not told[0][2]
    parts = [_made_of(error), None if is_own else dict(vars(error))]
    plain = [part if is_plain(part) else None for part in parts]
    return {"raised": told, "text": _text(error)}, [*plain, error if is_own else None]


def _made_of(error: BaseException) -> Any:
    """What it is made of; an `OSError` does not say all of it in `args`."""
    return error.__reduce__()[1] if isinstance(error, OSError) else BaseException.args.__get__(error)  # type: ignore[attr-defined]


def found_exception(told: Any, parts: Any, find: Callable[[Any], Any]) -> BaseException:
    """The exception that was told, of the class that `find` finds. Raises `NoValue`."""
    kind, text = find(told["raised"]), told.get("text")
    if type(text) is not str or type(parts) is not list or len(parts) != 3:
        raise NoValue("what arrived is no exception")
    args, attributes, origin = parts
    try:
        error = _made(kind, args if type(args) is tuple else (text,))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise NoValue("what arrived is no exception") from None
    if type(attributes) is dict:
        vars(error).update((name, value) for name, value in attributes.items() if type(name) is str)
    vars(error).update({TEXT: text, ORIGIN: origin})
    return error


def is_from_the_code(error: Any) -> bool:
    """Whether it is an exception that the code has raised."""
    return issubclass(type(error), BaseException) and TEXT in vars(error)


def stand_in_of(error: BaseException, parts: list[Any]) -> str:
    """What an exception differs in from the code's own; empty if in nothing."""
    if NUMBER in vars(type(error)) and hasattr(builtins, type(error).__name__):
        return f"the code's {type(error).__name__}"
    return "" if type(parts[0]) is tuple else "an exception that is made of an object"


def _made(kind: Any, args: tuple[Any, ...]) -> BaseException:
    error: BaseException = kind.__new__(kind, *args)
    if type(error) is not kind:  # an OSError knows by its number which of its classes it is
        error = kind.__new__(kind)
        error.args = args
    _initialize(kind, error, args)
    return error


def _initialize(kind: Any, error: Any, args: tuple[Any, ...]) -> None:
    """Initialize an exception as what its `kind` derives from does. Raises `ValueError`."""
    with contextlib.suppress(TypeError, ValueError, AttributeError):  # of a class that is made of something else
        next(one for one in kind.__mro__ if NUMBER not in vars(one)).__init__(error, *args)
    if isinstance(error, UNICODE) and not 0 <= error.start <= error.end <= len(error.object):
        raise ValueError("Python would read there without looking, to show it")


def _of_origin(error: BaseException, name: str) -> Any:
    if name.startswith("__") or ORIGIN not in vars(error):  # a test has made it
        raise AttributeError(name)
    return getattr(vars(error)[ORIGIN], name)


def _says(error: BaseException) -> str:
    text: str = vars(error)[TEXT] if TEXT in vars(error) else Exception.__str__(error)
    return text


def _shows(error: BaseException) -> str:
    origin = vars(error).get(ORIGIN)
    is_own = NUMBER in vars(type(error)) and origin is not None  # else a class of the test's
    return repr(origin) if is_own else Exception.__repr__(error)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_TEXT]
    except BaseException:  # noqa: BLE001 - an exception of the code that cannot be shown
        return ""
