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
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rlhf.reward.code.checking.exceptions import found_class, found_exception, told_class, told_exception
from rlhf.reward.code.checking.kinds import plain_part
from rlhf.reward.code.checking.lines import in_json, of_json
from rlhf.reward.code.checking.values import MOST_BYTES, Shared


def is_instance_of(value: Any, module: str, name: str) -> bool:
    """Whether it is an instance of the class of the library that is named."""
    return isinstance(value, getattr(importlib.import_module(module), name))


def is_subclass_of(kind: Any, module: str, name: str) -> bool:
    """Whether it is a subclass of the class of the library that is named."""
    return issubclass(kind, getattr(importlib.import_module(module), name))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "attribute": getattr,
    "setattr": setattr,
    "instance": isinstance,
    "instance of": is_instance_of,
    "subclass": issubclass,
    "subclass of": is_subclass_of,
    "class": type,
    "callable": callable,
    "id": id,
    "len": len,
    "iter": iter,
    "reversed": reversed,
    "next": next,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
    "str": str,
    "repr": repr,
    "format": format,
}
"""Operations that may be requested on an object, which is their first argument."""
OWN = "_rlhf_own"
MOST_DESCRIPTORS = 4096
FIRST_USER, USERS = 50_000, 15_000
LOWEST_LIMIT, HIGHEST_LIMIT = 200, 100_000
BENEATH = 4000
"""Calls of this process beneath those of the code: several for each function of the test that calls the code again."""


class Host:
    """Answers each request, a line of JSON, with one line. Numbers name objects of the code, and functions of the
    test."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = os.fdopen(requests, "rb"), os.fdopen(answers, "wb")
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._given = itertools.count()
        self._functions: dict[int, Any] = {}
        self._one_at_a_time = threading.RLock()
        self._is_asked = False
        self._limit = 0
        self._looked_up: dict[str, int] = {}
        self._shared = Shared(1, self._keep, self._find)
        solution = sys.modules["solution"] = ModuleType("solution")
        self._names = solution.__dict__

    def serve(self) -> None:
        """Serve requests until the input ends."""
        while line := self._requests.readline():
            answer = self._answer(of_json(line))
            with self._one_at_a_time:  # a thread of the code may still call a function of the test
                self._is_asked = False
                self._send(answer)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self._is_asked = True
        if (limit := request["recursion"]) != self._limit:  # else the code's own choice holds
            self._limit = limit
            sys.setrecursionlimit(max(LOWEST_LIMIT, min(limit, HIGHEST_LIMIT)) + BENEATH)
        try:
            try:
                values = self._shared.received(request)
            finally:  # what has died since may be part of what has changed
                for number in request["dead"]:
                    self._numbers.pop(id(self._objects.pop(number, None)), None)
            if request["do"] == "name" and request["name"] not in self._names:
                return {"missing": request["name"]} | self._shared.message(None)
            about: dict[str, Any] = {}
            try:
                result = self._done(request, values)
            except BaseException as error:  # noqa: BLE001 - whatever the code raises is told to the test
                if request["do"] != "next" or type(error) is not StopIteration:
                    about, result = self._told(error)
                else:
                    about, result = {"end": True}, error.value
            del values
            stale = self._stale()
            if request["do"] == "name":
                self._looked_up[request["name"]] = id(result)
            return about | self._shared.message(result) | {"stale": stale}
        except BaseException as error:  # noqa: BLE001 - the code's objects take part in it
            return {"unfit": f"{type(error).__name__}: {error}"[:200]}

    def _stale(self) -> list[str]:
        """The names that the tests have looked up and that are bound anew."""
        stale = [name for name, was in self._looked_up.items() if id(self._names.get(name)) != was]
        for name in stale:
            self._looked_up.pop(name)
        return stale

    def _done(self, request: dict[str, Any], values: Any) -> Any:
        match request["do"]:
            case "run":
                return exec(compile(request["code"], "solution.py", "exec", dont_inherit=True), self._names)
            case "name":
                return self._names[request["name"]]
            case "call":
                (function, *arguments), named = values
                return function(*arguments, **(named or {}))
            case operation:
                return OPERATIONS[operation](*values[0])

    def _told(self, error: BaseException) -> tuple[dict[str, Any], Any]:
        own = vars(error).get(OWN)
        return ({"own": own}, None) if type(own) is int else told_exception(error, self._number, self._shared.is_plain)

    def _send(self, message: dict[str, Any]) -> None:
        if len(line := in_json(message)) >= MOST_BYTES:
            self._shared.retract()
            line = in_json({"unfit": f"more than {MOST_BYTES} bytes"})
        self._answers.write(line + b"\n")
        self._answers.flush()

    def _keep(self, value: Any, pack: Callable[[Any], Any]) -> Any:
        for number, function in self._functions.items():
            if function is value:
                return {"function": number}
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"exceptions": told_class(value, self._number)}
        if (plain := plain_part(value)) is not None:
            return {"kind": [pack(plain), self._number(value)]}
        return {"object": self._number(value)}

    def _number(self, value: Any) -> int:
        if (number := self._numbers.get(id(value))) is None:
            number = self._numbers[id(value)] = next(self._given)
            self._objects[number] = value
        return number

    def _find(self, kind: str, known_by: Any, unpack: Callable[[Any], Any]) -> Any:
        if kind == "object":
            return self._objects[known_by]
        number, name, doc = known_by
        if number not in self._functions:
            function = self._functions[number] = self._function_of_the_test(number)
            function.__name__ = function.__qualname__ = name
            function.__doc__ = doc
        return self._functions[number]

    def _function_of_the_test(self, number: int) -> Callable[..., Any]:
        def function(*arguments: Any, **named: Any) -> Any:
            with self._one_at_a_time:
                if not self._is_asked:
                    raise RuntimeError("a function of the test is called when the test asks for nothing")
                return self._call(number, arguments, named)

        return function

    def _call(self, number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        called = self._shared.message((arguments, named or None))
        self._send({"function": number, "stale": self._stale()} | called)
        while "do" in (answer := self._heard()):  # the function asks the code for something
            self._send(self._answer(answer))
        result = self._shared.received(answer)
        if "own" not in answer:
            return result
        of_code = self._objects.get(answer["object"])
        error = result[2] or found_exception(answer, result, lambda told: of_code or found_class(told, {}))
        vars(error)[OWN] = answer["own"]
        raise error

    def _heard(self) -> dict[str, Any]:
        if not (line := self._requests.readline()):  # the tests have ended
            os._exit(0)
        heard: dict[str, Any] = of_json(line)
        return heard


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
        Host(requests, answers).serve()
    finally:
        os._exit(0)


def _leave_root() -> None:
    """Drop root in a sandbox that runs programs as root: the code must not be able to read the process of the tests."""
    user = FIRST_USER + os.getpid() % USERS
    with contextlib.suppress(OSError):  # mapped root only; the reward's start proves that the code reads nothing
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
