"""The code as the tests see it: functions and objects of another process, which can be asked for plain values."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, NoReturn

from rlhf.reward.checking.values import MOST_BYTES, NoValue, exception, pack, told, unpack

NEEDS_TRUST = "such tests need reward.code.tests: trusting"


class CodeEnded(Exception):
    """The process of the code is gone, or talks nonsense."""


class NeedsTrusting(Exception):
    """The test does with an object what only tests in the code's own process can do."""


class Link:
    """Asks the process of the code one thing at a time. `objection` says why no test passes any more, or this one."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = os.fdopen(requests, "wb"), os.fdopen(answers, "rb")
        self._functions: list[FunctionType] = []
        self._calling_back = False
        self.ended = self.objection = ""

    def run(self, code: str, names: list[str]) -> dict[str, Any]:
        """Run the code; those of `names` that it then has. Raises what the code raises, and `CodeEnded`."""
        found = self._exchange({"do": "run", "code": code, "names": names}).get("names")
        if type(found) is not dict:
            self._end("it gave no names")
        return {name: self._unpack(found[name]) for name in names if name in found}

    def trust(self, test: str) -> None:
        """Run a test in the code's own process. Raises what it raises there."""
        self._exchange({"do": "test", "test": test})

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """The result of an operation on the code's objects; lists, dicts and sets it was given change as there."""
        if self._calling_back:
            self.refuse("a function that a test hands over calls the code")
        packed = self._pack(list(arguments)), self._pack(named)
        answer = self._exchange({"do": operation, "arguments": packed[0], "named": packed[1]})
        if operation == "next" and answer.get("end") is True:
            raise StopIteration
        changed = answer.get("changed")
        if type(changed) is not list or "result" not in answer:
            self._end("it gave no result")
        result = self._unpack(answer["result"])
        for argument, content in zip((*arguments, *named.values()), changed, strict=False):
            if type(argument) in (list, dict, set) and content is not None:
                self._become(argument, self._unpack(content))
        return result

    def refuse(self, what: str) -> NoReturn:
        """The test cannot be judged from here; it fails, whatever it does about the exception."""
        self.objection = self.objection or f"{what}; {NEEDS_TRUST}"
        raise NeedsTrusting(self.objection)

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        self._send(request)
        while "function" in (answer := self._receive()):
            self._send(self._call_back(answer["function"], answer.get("arguments")))
        if "raised" in answer:
            raise exception(answer["raised"], answer.get("text"))
        return answer

    def _call_back(self, number: Any, packed: Any) -> dict[str, Any]:
        """What a function of the test, which it handed over, says of the code's plain values."""
        if type(number) is not int or not 0 <= number < len(self._functions) or type(packed) is not list:
            self._end("it calls a function that it was not given")
        self._calling_back = True
        try:
            arguments = [self._unpack(argument) for argument in packed]
            return {"result": self._pack(self._functions[number](*arguments))}
        except Exception as error:  # noqa: BLE001 - a function of the test, called with anything
            return told(error)
        finally:
            self._calling_back = False

    def _send(self, message: dict[str, Any]) -> None:
        if self.ended:
            raise CodeEnded(self.ended)
        try:
            self._requests.write(json.dumps(message).encode() + b"\n")
            self._requests.flush()
        except OSError:
            self._end("its process has ended")

    def _receive(self) -> dict[str, Any]:
        line = self._answers.readline(MOST_BYTES)
        if not line.endswith(b"\n"):
            self._end(f"an answer has more than {MOST_BYTES} bytes" if line else "its process has ended")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        return answer if type(answer) is dict else self._end("an answer is no JSON")

    def _end(self, why: str) -> NoReturn:
        self.ended = f"the code does not answer: {why}"
        raise CodeEnded(self.ended)

    def _become(self, argument: Any, value: Any) -> None:
        """Change a list, dict or set in place."""
        if type(value) is not type(argument):
            self._end("an argument became something else")
        argument.clear()
        argument.extend(value) if type(argument) is list else argument.update(value)

    def _pack(self, value: Any) -> Any:
        return pack(value, self._keep)

    def _unpack(self, packed: Any) -> Any:
        try:
            return unpack(packed, self._find)
        except NoValue as error:
            self._end(str(error))

    def _find(self, kind: str, number: Any) -> ObjectOfTheCode:
        if kind not in ("object", "function") or type(number) is not int:
            raise NoValue("what arrived is no value")
        return (ObjectOfTheCode if kind == "object" else FunctionOfTheCode)(self, number)

    def _keep(self, value: Any) -> dict[str, Any]:
        """What of a test's is no plain value, for the code: its own objects back, built-in functions by their names,
        functions of the test to be called back."""
        if type(value) in (ObjectOfTheCode, FunctionOfTheCode):
            return {"object": value._rlhf_number}
        if type(value) in (type, FunctionType, BuiltinFunctionType, MethodDescriptorType):
            module = getattr(value, "__objclass__", value).__module__
            if module in sys.stdlib_module_names:
                return {"named": [module, value.__qualname__]}
        if type(value) is not FunctionType:
            self.refuse(f"a test hands an object of type {type(value).__name__} to the code")
        self._functions.append(value)
        return {"function": len(self._functions) - 1}


def _refused(doing: str) -> Any:
    def refused(this: ObjectOfTheCode, *others: Any) -> NoReturn:
        this._rlhf_link.refuse(f"a test {doing} an object of the code")

    return refused


class ObjectOfTheCode:
    """It gives plain values, or objects like itself, when it is asked for an attribute, an item, its length or its
    items one by one. Nothing else is known of it: neither what it equals nor its truth.
    """

    __slots__ = ("_rlhf_link", "_rlhf_number")

    def __init__(self, link: Link, number: int) -> None:
        self._rlhf_link, self._rlhf_number = link, number

    __eq__ = __ne__ = __hash__ = __lt__ = __le__ = __gt__ = __ge__ = _refused("compares")
    __bool__ = __str__ = __repr__ = __format__ = __index__ = __int__ = __float__ = _refused("converts")

    def __getattribute__(self, name: str) -> Any:
        if name in ObjectOfTheCode.__slots__:
            return object.__getattribute__(self, name)
        if name.startswith("__"):  # its class too, which `isinstance` asks for
            self._rlhf_link.refuse(f"a test reads {name} of an object of the code")
        return self._rlhf_link.ask("attribute", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self._rlhf_link.ask("item", self, key)

    def __len__(self) -> int:
        length: int = self._rlhf_link.ask("length", self)
        return length

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = self._rlhf_link.ask("iterate", self)
        return iterator

    def __next__(self) -> Any:
        return self._rlhf_link.ask("next", self)


class FunctionOfTheCode(ObjectOfTheCode):
    """One that can be called: a function, a method, a class."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._rlhf_link.ask("call", self, *arguments, **named)
