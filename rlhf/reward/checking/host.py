"""The process of the code. Whatever it answers is a claim: it knows neither the tests nor what they expect."""

from __future__ import annotations

import importlib
import json
import operator
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rlhf.reward.checking.values import exception, pack, plain, told, unpack

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *arguments, **named: function(*arguments, **named),
    "attribute": getattr,
    "item": operator.getitem,
    "length": len,
    "iterate": iter,
}
"""What may be asked of an object, which is their first argument."""
MUTABLE = (list, dict, set)
MOST_DESCRIPTORS = 4096


class Host:
    """Answers each request, a line of JSON, with one line. Objects are known by their number."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = os.fdopen(requests, "r"), os.fdopen(answers, "w")
        self._objects: list[Any] = []
        self._names: dict[str, Any] = {"__name__": "solution"}

    def serve(self) -> None:
        """Carry out requests until nobody asks."""
        while line := self._requests.readline():
            request = json.loads(line)
            try:
                answer = self._carry_out(request["do"], request)
            except BaseException as error:  # noqa: BLE001 - whatever the code raises is told to the test
                answer = told(error)
            self._send(answer)

    def _carry_out(self, do: str, request: dict[str, Any]) -> dict[str, Any]:
        if do == "run":
            exec(compile(request["code"], "solution.py", "exec"), self._names)
            asked = {name: self._names[name] for name in request["names"] if name in self._names}
            return {"names": {name: self._pack(it) for name, it in asked.items() if not isinstance(it, ModuleType)}}
        if do == "test":
            exec(compile(request["test"], "test.py", "exec"), self._names)
            return {}
        arguments, named = self._unpack(request["arguments"]), self._unpack(request["named"])
        if do == "next":
            return self._next(arguments[0])
        result = OPERATIONS[do](*arguments, **named)
        given = (*arguments, *named.values())
        changed = [self._pack(argument) if type(argument) in MUTABLE else None for argument in given]
        return {"result": self._pack(result), "changed": changed}

    def _next(self, iterator: Any) -> dict[str, Any]:
        try:
            return {"result": self._pack(next(iterator)), "changed": [None]}
        except StopIteration:
            return {"end": True}

    def _send(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def _pack(self, value: Any) -> Any:
        return pack(value, self._keep)

    def _unpack(self, packed: Any) -> Any:
        return unpack(packed, self._find)

    def _keep(self, value: Any) -> Any:
        if (simple := plain(value)) is not value:
            return pack(simple, self._keep)
        self._objects.append(value)
        return {"function" if callable(value) else "object": len(self._objects) - 1}

    def _find(self, kind: str, known_by: Any) -> Any:
        if kind == "object":
            return self._objects[known_by]
        if kind == "named":
            module, name = known_by
            return operator.attrgetter(name)(importlib.import_module(module))
        return self._function_of_the_test(known_by)

    def _function_of_the_test(self, number: int) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            self._send({"function": number, "arguments": [self._pack(argument) for argument in arguments]})
            answer = json.loads(self._requests.readline())
            if "raised" in answer:
                raise exception(answer["raised"], answer["text"])
            return self._unpack(answer["result"])

        return function


def be_host(requests: int, answers: int, user: int) -> None:
    """Become the process of the code, as `user`, with no descriptor but these two. Never returns."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
        first, second = sorted((requests, answers))
        for start, end in ((3, first), (first + 1, second), (second + 1, MOST_DESCRIPTORS)):
            os.closerange(start, end)
        os.setresuid(user, user, user)
        sys.setrecursionlimit(10_000)
        Host(requests, answers).serve()
    finally:
        os._exit(0)
