"""Exceptions and their classes on their way between the process of the tests and that of the code: those of a table
and of Python's library by name, others by their own name and what they derive from. Nothing is imported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rlhf.reward.code.checking.values import EXCEPTIONS, Met, NoValue, nothing_else, pack_value

TEXT, ORIGIN = "_rlhf_text", "_rlhf_origin"
"""Attributes of an exception that has arrived: what it says, and what it is in the process that raised it."""
LONGEST_TEXT, LONGEST_NAME, MOST_BASES, MOST_CLASSES, MOST_LINKED = 10_000, 200, 8, 50, 20
TABLE: Mapping[str, type[BaseException]] = EXCEPTIONS | {
    kind.__name__: kind for kind in (BaseException, GeneratorExit, KeyboardInterrupt)
}
OF_THE_LIBRARY = frozenset(
    (
        *("asyncio.InvalidStateError", "asyncio.QueueEmpty", "asyncio.QueueFull", "binascii.Error", "copy.Error"),
        *("calendar.IllegalMonthError", "calendar.IllegalWeekdayError", "configparser.Error", "csv.Error"),
        *("configparser.DuplicateSectionError", "configparser.NoOptionError", "configparser.NoSectionError"),
        *("configparser.ParsingError", "dataclasses.FrozenInstanceError", "decimal.DecimalException"),
        *("decimal.FloatOperation", "decimal.Inexact", "decimal.Overflow", "decimal.Rounded", "decimal.Underflow"),
        *("graphlib.CycleError", "gzip.BadGzipFile", "ipaddress.AddressValueError", "ipaddress.NetmaskValueError"),
        *("numpy.linalg.LinAlgError", "pickle.PickleError", "pickle.PicklingError", "pickle.UnpicklingError"),
        *(
            "re.PatternError",
            "re.error",
            "shutil.Error",
            "sqlite3.DatabaseError",
            "sqlite3.Error",
            "sqlite3.IntegrityError",
        ),
        *("sqlite3.OperationalError", "statistics.StatisticsError", "struct.error", "subprocess.CalledProcessError"),
        *("subprocess.TimeoutExpired", "tokenize.TokenError", "urllib.error.URLError", "zlib.error"),
        *("xml.etree.ElementTree.ParseError", "zipfile.BadZipFile", "zoneinfo.ZoneInfoNotFoundError"),
    )
)
"""Exceptions of the library's modules. Where the tests' process has not loaded the module, no test awaits them."""
WAYS = (
    "str repr format bool len iter next getitem contains call enter exit reversed eq ne hash lt le gt ge int float "
    "index add radd sub mul or and"
)
OWN_WAYS = frozenset(f"__{name}__" for name in WAYS.split())
"""Methods of an exception's class in whose place a test would get those of Python's classes."""
ARGS: Any = vars(BaseException)["args"]
"""What an exception was made of here: of one of the code's, `args` would ask the code."""
Make = Callable[[Any, str, tuple[Any, ...], tuple[str, ...]], Any]
"""Makes a class of its number in the other process, its name, what it derives from, and which of `OWN_WAYS` it has."""


def class_value(kind: type[BaseException], number: Callable[[Any], Any]) -> Any:
    """A class of exceptions: its name in the table, or what `number` says of it, its name, what it derives from, which
    ways of its own it has, and its name in the library."""
    if TABLE.get(kind.__name__) is kind:
        return kind.__name__
    above = [class_value(base, number) for base in kind.__bases__ if issubclass(base, BaseException)]
    ways = sorted(OWN_WAYS.intersection(vars(kind)))
    return [number(kind), kind.__name__[:LONGEST_NAME], above, ways, name_in_library(kind)]


def name_in_library(kind: type[BaseException]) -> str:
    """The name under which `OF_THE_LIBRARY` has a class; empty for another."""
    ends = f".{kind.__name__}"
    return next((name for name in OF_THE_LIBRARY if name.endswith(ends) and _loaded(name) is kind), "")


def _loaded(name: str) -> Any:
    """The class of that name in the library, if its module is loaded."""
    module, _, own = name.rpartition(".")
    return vars(sys.modules[module]).get(own) if module in sys.modules else None


def class_of(told: Any, make: Make, left: list[None] | None = None) -> Any:
    """The class that was told. Raises `NoValue`."""
    if type(told) is str:
        if told not in TABLE:
            raise NoValue("what arrived is no exception")
        return TABLE[told]
    left = [None] * MOST_CLASSES if left is None else left
    if type(told) is not list or len(told) != 5 or not left:
        raise NoValue("what arrived is no exception")
    number, name, above, ways, known = told
    fits = type(name) is str and name.isidentifier() and len(name) <= LONGEST_NAME
    fits = fits and type(known) is str and type(ways) is list and all(type(way) is str for way in ways)
    if not fits or type(above) is not list or not 0 < len(above) <= MOST_BASES:
        raise NoValue("what arrived is no class")
    left.pop()
    if known in OF_THE_LIBRARY and (of_library := _loaded(known)) is not None:
        return of_library
    bases = tuple(class_of(one, make, left) for one in above)
    try:
        return make(number, name, bases, tuple(OWN_WAYS.intersection(ways)))
    except TypeError:  # bases that do not go together
        raise NoValue("what arrived is no class") from None


def text_of(error: BaseException) -> str:
    """What an exception says."""
    args = ARGS.__get__(error)
    return _text(args[0] if len(args) == 1 and type(args[0]) is str and _says_so(error) else error)


def exception_value(
    error: BaseException, number: Callable[[Any], Any], *, is_asked_for_text: bool = False
) -> dict[str, Any]:
    """An exception by its class, and what it says, unless it will be asked for that."""
    text = "" if is_asked_for_text and not _says_so(error) else text_of(error)
    return {"raised": class_value(type(error), number), "text": text}


def exception_parts(error: BaseException, *, attributes: bool) -> list[Any]:
    """The values that cross with an exception: what it was made of, where that is plain and all that its text says, and
    its plain attributes."""
    return [_made_of(error), {name: vars(error)[name] for name in _plain_attributes(error)} if attributes else {}]


def _made_of(error: BaseException) -> tuple[Any, ...] | None:
    with contextlib.suppress(BaseException):  # it is made of what an exception of the code says that it is made of
        made_of = tuple(error.__reduce__()[1])
        if _says_so(error) and _is_plain(made_of):
            return made_of
    return None


def _plain_attributes(error: BaseException) -> list[str]:
    return [name for name, value in vars(error).items() if name not in (TEXT, ORIGIN) and _is_plain(value)]


def _is_plain(value: Any) -> bool:
    try:
        pack_value(value, nothing_else, Met())
    except NoValue:
        return False
    return True


def linked(error: BaseException) -> list[BaseException]:
    """An exception, and after it those that it came from, as many as are told."""
    found = [error]
    for one in found:  # grows while it is read
        origins = [origin for origin in (one.__cause__, one.__context__) if origin is not None]
        found += [origin for origin in origins if not any(origin is known for known in found)]
        del found[MOST_LINKED:]
    return found


def leave_frames(error: BaseException) -> None:
    """Drop the tracebacks of an exception that is kept, which would keep all that the code worked with."""
    for one in linked(error):
        one.__traceback__ = None


def chain_value(chain: list[BaseException], first: int, number: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """These exceptions, numbered from `first`: with each, which of them are its cause and its context, and whether the
    context is suppressed."""
    places = {id(one): place for place, one in enumerate(chain)}
    return [
        exception_value(one, number)
        | {"number": first + place}
        | {"linked": [places.get(id(one.__cause__)), places.get(id(one.__context__)), one.__suppress_context__]}
        for place, one in enumerate(chain)
    ]


def link(error: BaseException, told: list[Any], among: list[BaseException]) -> None:
    """Give an exception the cause and the context that were told."""
    cause, context, suppressed = told
    error.__cause__ = None if cause is None else among[cause]
    error.__context__ = None if context is None else among[context]
    error.__suppress_context__ = suppressed


def _says_so(error: BaseException) -> bool:
    """Whether its text is that of a class of the table or of the library."""
    kind: Any = next(kind for kind in type(error).__mro__ if TABLE.get(kind.__name__) is kind or name_in_library(kind))
    return type(error).__str__ is kind.__str__ or (type(error).__str__ is says and TEXT not in vars(error))


def _text(words: Any) -> str:
    try:
        return str(words)[:LONGEST_TEXT]
    except BaseException:  # noqa: BLE001 - an exception of the code that cannot be shown
        return ""


def exception(told: Mapping[str, Any], parts: list[Any], origin: Any, make: Make) -> BaseException:
    """The exception that was told, of its `parts`. One that cannot be made of them is an `Exception` of a class that
    nothing awaits. Raises `NoValue`."""
    text, kind = told.get("text") if type(told.get("text")) is str else "", class_of(told.get("raised"), make)
    made_of, attributes = _parts(parts)
    try:
        made = _made(kind, (text,) if made_of is None else made_of)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # says its class
        made = _made(make(None, "ExceptionOfAnotherClass", (Exception,), ()), (text,))
    vars(made).update(attributes)
    vars(made).update({ORIGIN: origin, TEXT: text} if made_of is None else {ORIGIN: origin})
    return made


def change_exception(error: BaseException, parts: list[Any]) -> None:
    """Set on an exception of this process what was set on it in the other. Raises `NoValue`."""
    made_of, attributes = _parts(parts)
    vars(error).update(attributes)
    if made_of is not None and made_of != _made_of(error):
        error.args = made_of


def _parts(parts: list[Any]) -> tuple[tuple[Any, ...] | None, dict[str, Any]]:
    match parts:
        case [tuple() | None as made_of, dict() as attributes] if all(type(name) is str for name in attributes):
            return made_of, attributes
        case _:
            raise NoValue("what arrived is no exception")


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
