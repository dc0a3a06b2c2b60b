"""The code as the tests see it: functions and objects that live in another process."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from rlhf.reward.checking.values import pack, unpack


class CodeEnded(Exception):
    """The process of the code is gone, or talks nonsense."""


class Code:
    """The process of the code. What it prints goes nowhere; it is asked one thing at a time."""

    def __init__(self, source: str) -> None:
        receive, answers = os.pipe()
        requests, send = os.pipe()
        command = [sys.executable, "-m", "rlhf.reward.checking.host", str(requests), str(answers)]
        none = subprocess.DEVNULL
        pipes = (requests, answers)
        self._process = subprocess.Popen(command, stdin=none, stdout=none, stderr=none, pass_fds=pipes)
        os.close(answers)
        os.close(requests)
        self._requests, self._answers = os.fdopen(send, "w"), os.fdopen(receive, "r")
        self._functions: list[Callable[..., Any]] = []
        self.ended = False
        self._source = source

    def names(self) -> dict[str, Any]:
        """Run the code; what its names stand for afterwards. Raises what the code raises, and `CodeEnded`."""
        answer = self._exchange({"code": self._source})
        return {name: self._unpack(packed) for name, packed in answer["names"].items()}

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """The result of an operation on the code's objects; lists, dicts and sets it was given change as there."""
        request = {"do": operation, "arguments": self._pack(list(arguments)), "named": self._pack(named)}
        answer = self._exchange(request)
        given = arguments[1:] if operation == "call" else arguments
        for argument, packed in zip(given, answer["arguments"], strict=True):
            if packed is not None and isinstance(argument, (list, dict, set)):
                _become(argument, self._unpack(packed))
        return self._unpack(answer["result"])

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        self._send(request)
        while "function" in (answer := self._receive()):
            self._send(self._call_back(answer))
        if "raised" in answer:
            raise _exception(answer["raised"])(answer["text"])
        return answer

    def _call_back(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            arguments = [self._unpack(packed) for packed in asked["arguments"]]
            return {"result": self._pack(self._functions[asked["function"]](*arguments))}
        except Exception as error:  # noqa: BLE001 - a function of the test, called with anything
            return {"raised": f"{type(error).__name__}: {error}"}

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._requests.write(json.dumps(message) + "\n")
            self._requests.flush()
        except OSError:
            self._end()

    def _receive(self) -> dict[str, Any]:
        try:
            answer = json.loads(self._answers.readline())
        except ValueError:
            answer = None
        return answer if isinstance(answer, dict) else self._end()

    def _end(self) -> NoReturn:
        self.ended = True
        raise CodeEnded("the process of the code has ended")

    def _pack(self, value: Any) -> Any:
        return pack(value, self._keep)

    def _unpack(self, packed: Any) -> Any:
        return unpack(packed, self._find)

    def _find(self, kind: str, known_by: Any) -> Any:
        return importlib.import_module(str(known_by)) if kind == "module" else Remote(self, int(known_by))

    def _keep(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Remote):
            return {"object": object.__getattribute__(value, "_number")}
        if not callable(value):
            raise TypeError(f"a test cannot hand {type(value).__name__} to the code")
        self._functions.append(value)
        return {"function": len(self._functions) - 1}


class Remote:
    """An object of the code that is no plain data. It equals no plain data, whatever its class says, and takes part
    in arithmetic with its like only: so it learns of no value that a test expects."""

    def __init__(self, code: Code, number: int) -> None:
        object.__setattr__(self, "_code", code)
        object.__setattr__(self, "_number", number)

    def _ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        code: Code = object.__getattribute__(self, "_code")
        return code.ask(operation, self, *arguments, **named)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ask("call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set attribute", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("set item", key, value)

    def __len__(self) -> int:
        return int(self._ask("length"))

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = self._ask("iterator")
        return iterator

    def __next__(self) -> Any:
        return self._ask("next")

    def __contains__(self, value: Any) -> bool:
        return any(inner == value for inner in self)

    def __str__(self) -> str:
        return str(self._ask("text"))

    def __repr__(self) -> str:
        return str(self._ask("representation"))

    def __bool__(self) -> bool:
        return self._ask("truth") is True

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self._ask("equal", other) is True

    def __lt__(self, other: Any) -> Any:
        return self._with_its_like("less", other)

    def __add__(self, other: Any) -> Any:
        return self._with_its_like("add", other)

    def __sub__(self, other: Any) -> Any:
        return self._with_its_like("subtract", other)

    def __mul__(self, other: Any) -> Any:
        return self._with_its_like("multiply", other)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and instance._ask("is instance", self) is True

    def _with_its_like(self, operation: str, other: Any) -> Any:
        return self._ask(operation, other) if isinstance(other, Remote) else NotImplemented


def _become(argument: Any, value: Any) -> None:
    """Change a list, dict or set in place."""
    if argument == value:
        return
    argument.clear()
    if isinstance(argument, list):
        argument.extend(value)
    else:
        argument.update(value)


def _exception(name: str) -> type[Exception]:
    """The built-in exception of that name; `RuntimeError` for one of the code's own, or one that ends processes."""
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError
