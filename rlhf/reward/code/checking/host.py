"""The process of the untrusted code. Its answers are not trusted: it knows neither the tests nor the expected
results."""

from __future__ import annotations

import contextlib
import importlib
import json
import operator
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rlhf.reward.code.checking.kinds import CHANGEABLE, beneath
from rlhf.reward.code.checking.parameters import with_parameters
from rlhf.reward.code.checking.values import (
    MOST_BYTES,
    Met,
    apply_changes,
    array,
    array_parts,
    changed_values,
    exception,
    exception_value,
    in_json,
    items_of,
    pack_value,
    same_items,
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
}
"""Operations that may be requested on an object, which is their first argument."""
SOURCES = {"run": "solution.py", "test": "test.py"}
MOST_DESCRIPTORS = 4096
HIGHEST_LIMIT = 2**31 - 1
FIRST_USER, USERS = 50_000, 15_000


class ObjectServer:
    """Answers each request, a number and a line of JSON, with one line that has the same number. Numbers identify
    objects and functions of the test."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = os.fdopen(requests, "rb"), os.fdopen(answers, "wb")
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._of_test: dict[int, Any] = {}
        self._numbers_of_test: dict[int, int] = {}
        self._yielded: dict[int, dict[int, tuple[Any, tuple[Any, ...]]]] = {}
        self._one_at_a_time = threading.Lock()
        self._arrays: list[tuple[Any, bytes]] = []
        self._request = b""
        self._waiting: list[bytes] = []
        solution = sys.modules["solution"] = ModuleType("solution")
        self._names = solution.__dict__
        self._names["__file__"] = os.path.join(os.getcwd(), "solution.py")

    def serve(self) -> None:
        """Serve requests until the input ends."""
        while line := (self._waiting.pop(0) if self._waiting else self._requests.readline()):
            self._request, _, asked = line.partition(b" ")
            answer = self._answer(json.loads(asked))
            with self._one_at_a_time:  # a thread of the code may still call a function of the test
                self._send(answer)
                self._request = b""

    def _answer(self, request: dict[str, Any]) -> bytes:
        do, met, before, end = request["do"], Met(), [], {}
        self._arrays = []
        if "recursion" in request:
            sys.setrecursionlimit(min(request["recursion"] + _depth(), HIGHEST_LIMIT))
        if do == "name":
            return self._named(request["name"])
        try:
            if do in ("run", "test"):
                exec(compile(request["code"], SOURCES[do], "exec", dont_inherit=True), self._names)
                return b"{}"
            arguments, named = (unpack_value(request[given], self._find, met) for given in ("arguments", "named"))
            before = [items_of(value) for value in met.values]
            result = next(arguments[0]) if do == "next" else OPERATIONS[do](*arguments, **named)
        except BaseException as error:  # noqa: BLE001 - whatever the code raises is told to the test
            if do != "next" or type(error) is not StopIteration:
                raised = exception_value(error)
                return self._line(lambda: raised | self._changed(before, met))
            result, end = error.value, {"end": True}
        iterator = arguments[0] if do == "next" else None
        return self._line(lambda: end | {"result": self._sent(result, iterator, met)} | self._changed(before, met))

    def _sent(self, result: Any, iterator: Any, met: Met) -> Any:
        """A result as sent. What an iterator yields twice, and has changed meanwhile, would be two values for the test,
        and is one."""
        given = len(met.values)
        packed = self._pack(result, met)
        if iterator is not None:
            yielded = self._yielded.setdefault(id(iterator), {})
            for value in met.values[given:]:
                _, items = yielded.setdefault(id(value), (value, items_of(value)))
                if not same_items(items, value):
                    raise ValueError("an iterator of the code changes what it has yielded")
        return packed

    def _changed(self, before: list[tuple[Any, ...]], met: Met) -> dict[str, Any]:
        arrays, self._arrays = self._arrays, []
        if any(value.tobytes() != was for value, was in arrays):
            raise ValueError("the code changes an array of the test in place")
        return {"changed": changed_values(before, self._keep, met)}

    def _named(self, name: str) -> bytes:
        if name not in self._names or isinstance(self._names[name], ModuleType):
            return b'{"missing": true}'
        return self._line(lambda: {"result": self._pack(self._names[name], Met()), "changed": []})

    def _line(self, answer: Callable[[], dict[str, Any]]) -> bytes:
        """An answer as sent. A value that cannot be sent is distinguished from exceptions, which tests may expect."""
        try:
            line = in_json(answer())
        except BaseException as error:  # noqa: BLE001 - the code's objects take part in it
            return in_json({"unfit": f"{type(error).__name__}: {exception_value(error)['text']}"})
        return line if len(line) < MOST_BYTES else in_json({"unfit": f"it has more than {MOST_BYTES} bytes"})

    def _send(self, line: bytes) -> None:
        self._answers.write(b"%b %b\n" % (self._request, line))
        self._answers.flush()

    def _pack(self, value: Any, met: Met) -> Any:
        return pack_value(value, self._keep, met)

    def _keep(self, value: Any) -> Any:
        if (number := self._numbers_of_test.get(id(value))) is not None:
            return {"own": number}
        if (packed := array_parts(value, self._keep)) is not None:
            given = (place for place, (array, _) in enumerate(self._arrays) if array is value)
            return packed if (place := next(given, None)) is None else {"given": place}
        plain = beneath(value)
        if type(plain) in CHANGEABLE:
            return {"kin": [self._pack(plain, Met()), 0]}
        if (number := self._numbers.get(id(value))) is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        if plain is not value:
            return {"kin": [self._pack(plain, Met()), number]}
        return {"function" if callable(value) else "object": number}

    def _find(self, kind: str, known_by: Any) -> Any:
        if kind == "object":
            return self._objects[known_by]
        if kind == "array":
            value = array(known_by, importlib.import_module("numpy"))
            self._arrays.append((value, value.tobytes()))
            return value
        number, *about = known_by
        if number not in self._of_test:
            value = _named(*about) if kind == "named" else self._function_of_the_test(number, *about)
            self._of_test[number], self._numbers_of_test[id(value)] = value, number
        return self._of_test[number]

    def _function_of_the_test(
        self, number: int, name: str, doc: str | None, parameters: list[list[Any]]
    ) -> Callable[..., Any]:
        def call(arguments: list[Any], named: dict[str, Any]) -> Any:
            with self._one_at_a_time:
                if not self._request:
                    raise RuntimeError("a function of the test is called when the test asks for nothing")
                return self._call(number, arguments, named)

        function = with_parameters(parameters, call)
        function.__name__ = function.__qualname__ = name
        function.__doc__ = doc
        return function

    def _call(self, number: int, arguments: list[Any], named: dict[str, Any]) -> Any:
        met = Met()
        packed = [self._pack(one, met) for one in arguments]
        packed_named = {name: self._pack(one, met) for name, one in named.items()}
        given = len(met.values)
        self._send(in_json({"function": number, "arguments": packed, "named": packed_named}))
        answer = self._said()
        raised = exception(answer) if "raised" in answer else None
        result = None if raised else unpack_value(answer["result"], self._find, met)
        apply_changes(answer["changed"], self._find, met, given)
        if raised:
            raise raised
        return result

    def _said(self) -> dict[str, Any]:
        """The return value of a function of the test. Meanwhile the test may have abandoned its request and sent
        another."""
        while line := self._requests.readline():
            said: dict[str, Any] = json.loads(line.partition(b" ")[2])
            if "do" not in said:
                return said
            self._waiting.append(line)
        os._exit(0)


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
