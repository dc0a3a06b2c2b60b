"""The process of the code. Whatever it answers is a claim: it knows neither the tests nor what they expect."""

from __future__ import annotations

import functools
import json
import operator
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rlhf.reward.checking.values import pack, unpack

OPERATIONS: dict[str, Callable[..., Any]] = {
    "attribute": getattr,
    "set attribute": setattr,
    "item": operator.getitem,
    "set item": operator.setitem,
    "length": len,
    "iterator": iter,
    "next": next,
    "text": str,
    "representation": repr,
    "truth": bool,
    "equal": operator.eq,
    "less": operator.lt,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "is instance": isinstance,
}
MUTABLE = (list, dict, set)


class Host:
    """Answers requests, a line of JSON each, about the objects of the code. Objects are known by their number."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = os.fdopen(requests, "r"), os.fdopen(answers, "w")
        self._objects: list[Any] = []

    def serve(self) -> None:
        """Run the code of the first request, then carry out the others."""
        self._answer(lambda: self._names(self._receive()["code"]))
        while True:
            self._answer(functools.partial(self._carry_out, self._receive()))

    def _names(self, code: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "solution"}
        exec(compile(code, "solution.py", "exec"), names)
        return {"names": {name: self._pack(value) for name, value in names.items() if not name.startswith("__")}}

    def _carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        arguments, named = self._unpack(request["arguments"]), self._unpack(request["named"])
        operation = request["do"]
        result = (arguments.pop(0) if operation == "call" else OPERATIONS[operation])(*arguments, **named)
        mutated = [self._pack(argument) if isinstance(argument, MUTABLE) else None for argument in arguments]
        return {"result": self._pack(result), "arguments": mutated}

    def _answer(self, work: Callable[[], dict[str, Any]]) -> None:
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001 - whatever the code raises is told to the test
            answer = {"raised": type(error).__name__, "text": str(error)[:500]}
        self._send(answer)

    def _receive(self) -> dict[str, Any]:
        line = self._requests.readline()
        if not line:
            os._exit(0)
        request: dict[str, Any] = json.loads(line)
        return request

    def _send(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def _pack(self, value: Any) -> Any:
        return pack(value, self._keep)

    def _unpack(self, packed: Any) -> Any:
        return unpack(packed, self._find)

    def _keep(self, value: Any) -> dict[str, Any]:
        if isinstance(value, ModuleType):
            return {"module": value.__name__}  # the tests use their own
        self._objects.append(value)
        return {"object": len(self._objects) - 1}

    def _find(self, kind: str, number: int) -> Any:
        return self._objects[number] if kind == "object" else self._function_of_the_test(number)

    def _function_of_the_test(self, number: int) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            self._send({"function": number, "arguments": [self._pack(argument) for argument in arguments]})
            answer = self._receive()
            if "raised" in answer:
                raise RuntimeError(answer["raised"])
            return self._unpack(answer["result"])

        return function


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    Host(int(sys.argv[1]), int(sys.argv[2])).serve()
