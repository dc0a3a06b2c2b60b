"""The process of the untrusted code. Its answers are not trusted: it knows neither the tests nor the expected
results."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from rlhf.reward.code.checking.arrays import OF_ARRAYS
from rlhf.reward.code.checking.exceptions import (
    ORIGIN,
    class_value,
    exception,
    exception_parts,
    exception_value,
    leave_frames,
    link,
    name_in_library,
    says,
    text_of,
)
from rlhf.reward.code.checking.kinds import BASES, CHANGEABLE, plain_kind, reference_kind
from rlhf.reward.code.checking.parameters import unsent, with_parameters
from rlhf.reward.code.checking.recursion import HIGHEST_LIMIT, room_for_a_message
from rlhf.reward.code.checking.settings import Follower
from rlhf.reward.code.checking.shared import OF_THE_CODE, Lost, Shared
from rlhf.reward.code.checking.values import (
    NoValue,
    content,
    holds_own_keys,
    in_json,
    of_json,
    pack_value,
    unpack_value,
)

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, /, *arguments, **named: function(*arguments, **named),
    "attribute": getattr,
    "item": operator.getitem,
    "length": len,
    "iterate": iter,
    "contains": operator.contains,
    "reversed": reversed,
    "sleep": time.sleep,
    "show": lambda value: bool(str(value)),
    "text": str,
    "represent": lambda value: bool(repr(value)),
}
"""Operations that may be requested on an object, which is their first argument."""
SOURCES = {"run": "solution.py", "test": "test.py"}
MOST_DESCRIPTORS = 4096
SHARED = slice(-2, None)
"""Where a message about a function of the test has its annotations and attributes."""
FIRST_USER, USERS = 50_000, 15_000


class ObjectServer:
    """Answers each request, a line of JSON, with one line. Numbers identify objects, functions of the test, and the
    values that both have."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = os.fdopen(requests, "rb"), os.fdopen(answers, "wb")
        self._objects: dict[int, Any] = {}
        self._given = itertools.count()
        self._kept: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._of_test: dict[int, Any] = {}
        self._loose: dict[int, weakref.ref[Any]] = {}
        self._numbers_of_test: dict[int, int] = {}
        self._classes_of_test: dict[int, type] = {}
        self._shared, self._follower = Shared(OF_THE_CODE), Follower()
        self._one_at_a_time = threading.RLock()
        self._wanting: list[int] = []
        self._is_asked = False
        self._lost = ""
        solution = sys.modules["solution"] = ModuleType("solution")
        self._names = solution.__dict__
        self._names["__file__"] = os.path.join(os.getcwd(), "solution.py")

    def serve(self) -> None:
        """Serve requests until the input ends."""
        while line := self._requests.readline():
            about, values = self._answer(of_json(line))
            with self._one_at_a_time:  # a thread of the code may still call a function of the test
                self._send(self._line(about, values))
                self._is_asked = False
            del values  # the test may have them no longer when it asks next

    def _answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """What is said of the answer, and its values."""
        do = request["do"]
        with self._one_at_a_time:
            self._is_asked, self._lost = True, ""
            try:
                given = self._shared.take(request, self._find)
            except NoValue as error:
                return {"unfit": str(error)}, []
        self._bury(request)
        self._follower.follow(request)
        if "recursion" in request:
            sys.setrecursionlimit(min(request["recursion"] + _depth(), HIGHEST_LIMIT))
        if do == "name":
            name = request["name"]
            is_there = name in self._names and not isinstance(self._names[name], ModuleType)
            return ({}, [self._names[name]]) if is_there else ({"missing": True}, [])
        if do == "end":
            return {}, []
        try:
            if do in ("run", "test"):
                exec(compile(request["code"], SOURCES[do], "exec", dont_inherit=True), self._names)
                return {}, []
            arguments, named = given
            return {}, [next(arguments[0]) if do == "next" else OPERATIONS[do](*arguments, **dict(named))]
        except BaseException as error:  # noqa: BLE001 - whatever the code raises is told to the test
            if do == "next" and type(error) is StopIteration:
                return {"end": True}, [error.value]
            return self._told(error)

    def _told(self, error: BaseException) -> tuple[dict[str, Any], list[Any]]:
        """An exception as told: one of the test's is its own again, one of another class than Python's is kept."""
        told = exception_value(error, self._number_of_class, is_asked_for_text=True)
        if (number := vars(error).get(ORIGIN)) is not None:
            told["of_test"] = number
        elif type(told["raised"]) is not str:
            leave_frames(error)
            told["object"] = self._keep(error)
        of_the_tests = number is not None or type(error) in self._classes_of_test.values()
        return told, exception_parts(error, attributes=of_the_tests or bool(name_in_library(type(error))))

    def _line(self, about: dict[str, Any], values: list[Any]) -> bytes:
        """An answer as sent. A value that cannot be sent is distinguished from exceptions, which tests may expect."""
        try:
            if self._lost:
                raise Lost(self._lost)
            return self._shared.line(about, values, self._keep)
        except BaseException as error:  # noqa: BLE001 - the code's objects take part in it
            return in_json({"unfit": f"{type(error).__name__}: {text_of(error)}"})

    def _send(self, line: bytes) -> None:
        self._answers.write(line + b"\n")
        self._answers.flush()

    def _keep(self, value: Any) -> Any:
        if (number := self._numbers_of_test.get(id(value))) is not None:
            self._of_test[number] = value
            return {"own": number}
        plain = None if holds_own_keys(value) else plain_kind(value)
        if plain in CHANGEABLE:
            if (number := self._shared.number(value)) is not None:
                return {"met": number}
            number = self._shared.add(value)
            return {"kin": [plain.__name__, number, content(value, self._keep, self._shared, 1)]}
        if issubclass(type(value), type) and issubclass(value, BaseException):
            return {"exceptions": class_value(value, self._number_of_class)}
        if plain:
            return {"kin": [pack_value(BASES[plain](value), self._keep, self._shared), self._kept_number(value)]}
        return {reference_kind(value): self._number(value)}

    def _number(self, value: Any) -> int:
        if (number := self._numbers.get(id(value))) is None:
            number = self._numbers[id(value)] = next(self._given)
            self._objects[number] = value
        return number

    def _kept_number(self, value: Any) -> int:
        """The number of a value that is kept until the end: the test may send it at any time."""
        self._kept.add(number := self._number(value))
        return number

    def _number_of_class(self, kind: type) -> Any:
        """The number of a class of exceptions; in a list that of one of the test's."""
        of_tests = [number for number, made in self._classes_of_test.items() if made is kind]
        return of_tests or self._kept_number(kind)

    def _bury(self, message: dict[str, Any]) -> None:
        """Keep no longer what the test has no longer."""
        for number in message["dead"]:
            if number not in self._kept:
                del self._numbers[id(self._objects.pop(number))]
        for number in message["unheld"]:  # the code may have it yet
            if (function := self._of_test.pop(number, None)) is not None:  # else a message with it was never sent
                self._loose[number] = weakref.ref(function, partial(self._forget, number, id(function)))

    def _forget(self, number: int, place: int, reference: Any) -> None:
        if self._loose.get(number) is reference:
            del self._loose[number], self._numbers_of_test[place]

    def _find(self, kind: str, known_by: Any) -> Any:
        if kind == "object":
            return self._objects[known_by]
        if kind in OF_ARRAYS:
            return OF_ARRAYS[kind](known_by, importlib.import_module("numpy"))
        number, *about = known_by
        shared: list[Any] = []
        if kind == "function":
            shared = [unpack_value(part, self._find, self._shared) for part in about[SHARED]]
            del about[SHARED]
        if number not in self._of_test and number in self._loose:
            self._of_test[number] = self._loose[number]()
        if number not in self._of_test:
            value = _named(*about) if kind == "named" else self._function_of_the_test(number, *about)
            self._of_test[number], self._numbers_of_test[id(value)] = value, number
        for name, part in zip(("__annotations__", "__dict__"), shared, strict=False):
            if part is not None:
                setattr(self._of_test[number], name, unsent(self._lose) if part is False else part)
        return self._of_test[number]

    def _lose(self) -> NoReturn:
        self._lost = "annotations of a function of the test, which cannot be sent"
        raise Lost(self._lost)

    def _function_of_the_test(
        self, number: int, name: str, qualname: str, module: str, doc: str | None, parameters: list[list[Any]]
    ) -> Callable[..., Any]:
        def call(arguments: list[Any], named: dict[str, Any]) -> Any:
            self._wanting.append(number)
            with self._one_at_a_time:
                self._wanting.remove(number)
                if not self._is_asked:
                    raise RuntimeError("a function of the test is called when the test asks for nothing")
                with room_for_a_message():
                    return self._call(number, arguments, named)

        function = with_parameters(parameters, call)
        function.__name__, function.__qualname__ = name, qualname
        function.__module__, function.__doc__ = module, doc
        return function

    def _call(self, number: int, arguments: list[Any], named: dict[str, Any]) -> Any:
        self._send(self._shared.line({"function": number}, [tuple(arguments), tuple(named.items())], self._keep))
        if not (line := self._requests.readline()):
            os._exit(0)
        answer = of_json(line)
        try:
            result = self._shared.take(answer, self._find)
        except Lost as error:  # the code may catch it, and the test never know
            self._lost = str(error)
            raise
        self._bury(answer)
        self._follower.follow(answer)
        if answer["slept"] and self._wanting:
            self._lost = "threads call functions of the test at once, which come one after the other"
        if "chain" in answer:
            self._raise(answer["chain"], result)
        return result[0]

    def _raise(self, chain: list[Any], parts: list[Any]) -> NoReturn:
        """Raise an exception of the test's, which comes from what it came from there."""
        made = self._made(chain, parts)
        context = made[0].__context__
        try:
            raise made[0]
        finally:
            made[0].__context__ = context or made[0].__context__  # Python sets what the code is handling
            made.clear()  # this frame hangs on the exception, which would hang on it

    def _made(self, chain: list[Any], parts: list[Any]) -> list[BaseException]:
        both = zip(chain, parts, strict=True)
        made = [exception(told, part, told["number"], self._class_of_test) for told, part in both]
        for told, one in zip(chain, made, strict=True):
            link(one, told["linked"], made)
        return made

    def _class_of_test(self, number: int, name: str, bases: tuple[Any, ...], ways: tuple[str, ...]) -> Any:
        if number not in self._classes_of_test:
            self._classes_of_test[number] = type(name, bases, {"__str__": says})
        return self._classes_of_test[number]


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


def be_host(requests: int, answers: int, user: int) -> None:
    """Become the process of the code, as `user`, keeping only these two file descriptors. Never returns."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
        first, second = sorted((requests, answers))
        for start, end in ((3, first), (first + 1, second), (second + 1, MOST_DESCRIPTORS)):
            os.closerange(start, end)
        if user == 0:
            _leave_root()
        else:
            os.setresuid(user, user, user)
        ObjectServer(requests, answers).serve()
    finally:
        os._exit(0)


def _leave_root() -> None:
    """Drop root in a sandbox that runs programs as root: the code must not be able to read the process of the tests."""
    user = FIRST_USER + os.getpid() % USERS
    with contextlib.suppress(OSError):  # mapped root only; the reward's start proves that the code reads nothing
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _depth() -> int:
    """Depth of the call stack below the code, so that the code has the usual recursion limit."""
    frame, depth = sys._getframe(), 3
    while frame := frame.f_back:  # type: ignore[assignment]
        depth += 1
    return depth
