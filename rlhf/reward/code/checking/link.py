"""The tests' end of the conversation with the code's process: one request, one answer, by value."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from rlhf.reward.code.checking.exceptions import NUMBER, found_class, found_exception, stand_in_of, told_exception
from rlhf.reward.code.checking.kinds import KINDS, ORIGIN, kind_of
from rlhf.reward.code.checking.lines import in_json, of_json
from rlhf.reward.code.checking.objects import Remote
from rlhf.reward.code.checking.values import MOST_BYTES, NoValue, Shared

NEEDS_TRUST = "such tests need reward.code.tests: trusting"
CHUNK = 1 << 16
USUAL_LIMIT, LIMIT = 1000, 5000
"""Python's recursion limit, and that of the tests' process, where a call of the code takes several."""
Answer = dict[str, Any]


class CodeEnded(Exception):
    """The process of the code has ended, has no time left, or violates the protocol."""


class NeedsTrusting(Exception):
    """The test uses an object in a way that only works in the code's own process."""


class Link:
    """Asks the process of the code one thing at a time, until `seconds` are over. `forget` is called with each name
    that the code has bound anew.

    `objection` says why this test does not pass, `ended` why none does any more; `asked` is how often the code was
    asked for what it has, `objects` how often an object is an answer. `stands_in` is what of this test, or `of_all`, is
    in one of the processes as a stand-in that differs from it: where such a test fails, one Python might not. What is
    `held` lives as long as the test."""

    def __init__(self, requests: int, answers: int, seconds: float) -> None:
        self._requests, self._answers = requests, answers
        os.set_blocking(requests, False)
        sys.setrecursionlimit(LIMIT)
        self._deadline = time.monotonic() + seconds
        self._received = bytearray()
        self._shared = Shared(0, self._keep, self._find)
        self._functions: list[Any] = []
        self._classes: dict[int, Any] = {}
        self._remotes: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self._dead: list[int] = []
        self._raised: list[BaseException] = []
        self._one_at_a_time = threading.RLock()
        self.forget: Callable[[Any], None] = lambda _: None
        self._is_waiting = False
        self.ended = self.of_all = ""
        self.start_test()

    def start_test(self) -> None:
        """Forget what the last test has done."""
        self.objection, self.stands_in = "", self.of_all
        self.asked = self.objects = 0
        self.held: list[Any] = []
        self._shared.differs = ""

    def run(self, code: str) -> None:
        """Run the code. Raises what the code raises, and `CodeEnded`."""
        self._exchange({"do": "run", "code": code}, ())

    def name(self, name: str) -> Any:
        """What the code has under that name now. Raises `KeyError`."""
        self.asked += 1
        objects = self.objects
        found = self._exchange({"do": "name", "name": name}, ())
        self.objects = objects
        return found

    def ask(self, operation: str, *arguments: Any, named: dict[str, Any] | None = None) -> Any:
        """The result of an operation on the code's objects."""
        self.asked += 1
        return self._exchange({"do": operation}, (arguments, named or None))

    def refuse(self, what: str) -> NoReturn:
        """Fail the test because it cannot be judged from this process, also if it catches the exception."""
        self.objection = self.objection or f"{what}; {NEEDS_TRUST}"
        raise NeedsTrusting(self.objection)

    def stop(self, what: str) -> NoReturn:
        """Fail the test, and every test after it, whatever they do about it."""
        self.ended = self.ended or f"{what}; {NEEDS_TRUST}"
        raise NeedsTrusting(self.ended)

    def _exchange(self, request: dict[str, Any], values: Any) -> Any:
        with self._one_at_a_time:
            if self._is_waiting:  # a recursion limit, say, has ended the last request amid its answer
                self._end("a test has left an answer of it")
            try:
                told = self._shared.message(values)
                request["dead"] = [number for number in self._dead if number not in self._remotes]
                self._dead.clear()
                limit = sys.getrecursionlimit()
                self._is_waiting = True
                self._send(request | told | {"recursion": USUAL_LIMIT if limit == LIMIT else limit})
                del told, values  # while the code works, the test has what it has
                while "function" in (answer := self._read()):
                    self._call_back(answer)
                return self._result(answer, ends=request["do"] == "next")
            except NoValue as error:
                self.refuse(str(error))
            finally:
                self.stands_in = self.stands_in or self._shared.differs

    def _result(self, answer: Answer, *, ends: bool) -> Any:
        """What an answer says; only an iterator `ends`. Raises what the code raises, and `NoValue`."""
        if "unfit" in answer:
            raise NoValue(f"an answer of the code is no value ({str(answer['unfit'])[:100]})")
        values = self._values_of(answer)
        if "missing" in answer:
            raise KeyError(answer["missing"])
        if "own" in answer:
            raise _not_ending(self._item(self._raised, answer["own"]))
        if "raised" in answer:
            error = found_exception(answer, values, self._class)
            self.stands_in = self.stands_in or stand_in_of(error, values)
            raise _not_ending(error)
        if "end" in answer and ends:
            raise StopIteration(values)
        return values

    def _values_of(self, answer: Answer) -> Any:
        values = self._shared.received(answer)
        for name in answer.get("stale", ()):
            self.forget(name)
        return values

    def _call_back(self, asked: Answer) -> None:
        """Call a function that the test passed to the code, and tell what it returns or raises."""
        function = self._item(self._functions, asked["function"])
        try:
            arguments, named = self._values_of(asked)
            answer = self._shared.message(function(*arguments, **(named or {})))
        except BaseException as error:  # noqa: BLE001 - a function of the test, called with anything
            if isinstance(error, NoValue):
                self.objection = self.objection or f"{error}; {NEEDS_TRUST}"
            self._raised.append(error)
            told, (args, attributes, _) = told_exception(error, id, self._shared.is_plain)
            answer = told | {"own": len(self._raised) - 1, "raised": told["raised"][-1:]}
            answer |= self._shared.message([args, attributes, vars(error).get(ORIGIN)])
            answer |= {"object": vars(type(error)).get(NUMBER)}
        self._send(answer)

    def _keep(self, value: Any, pack: Callable[[Any], Any]) -> Any:
        """What of a test is sent and is no plain value: the code's own, and functions, which the code may call."""
        value = vars(value)[ORIGIN] if type(value) in KINDS.values() else value
        if type(value) is Remote:
            return {"object": value._rlhf_number}
        if isinstance(value, type) and NUMBER in vars(value):
            return {"object": vars(value)[NUMBER]}
        if isinstance(value, type) or not callable(value):
            raise NoValue(f"a test hands an object of type {type(value).__name__} to the code")
        self.stands_in = self.stands_in or "a function of the test"
        number = next((place for place, known in enumerate(self._functions) if known is value), len(self._functions))
        if number == len(self._functions):
            self._functions.append(value)
        return {"function": [number, getattr(value, "__name__", ""), getattr(value, "__doc__", None)]}

    def _find(self, kind: str, known_by: Any, unpack: Callable[[Any], Any]) -> Any:
        match kind, known_by:
            case "object", int():
                self.objects += 1
                return self._remote(known_by)
            case "kind", [plain, int(number)]:
                self.stands_in = self.stands_in or "a value of a class of the code"
                return kind_of(unpack(plain), self._remote(number))
            case "function", _:
                return self._item(self._functions, known_by)
            case "exceptions", _:
                return self._class(known_by)
            case _:
                raise NoValue("what arrived is no value")

    def _class(self, told: Any) -> Any:
        return found_class(told, self._classes, self)

    def _remote(self, number: int) -> Remote:
        if (found := self._remotes.get(number)) is None:
            found = self._remotes[number] = Remote(self, number)
            weakref.finalize(found, self._dead.append, number).atexit = False
        return found

    def _item(self, among: list[Any], number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(among):
            self._end("it names what the test has not handed over")
        return among[number]

    def _send(self, message: dict[str, Any]) -> None:
        if self.ended:
            raise CodeEnded(self.ended)
        left = memoryview(in_json(message) + b"\n")
        while left:
            self._wait([], [self._requests])
            try:
                left = left[os.write(self._requests, left[:CHUNK]) :]
            except BlockingIOError:
                continue
            except OSError:
                self._end("its process has ended")

    def _read(self) -> Answer:
        self._is_waiting = True
        looked = 0
        while (end := self._received.find(b"\n", looked)) < 0:
            looked = len(self._received)
            if looked > MOST_BYTES:
                self._end(f"an answer has more than {MOST_BYTES} bytes")
            self._wait([self._answers], [])
            if not (chunk := os.read(self._answers, CHUNK)):
                self._end("its process has ended")
            self._received += chunk
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._is_waiting = False
        try:
            answer = of_json(line)
        except (ValueError, RecursionError):
            answer = None
        if type(answer) is not dict:
            self._end("an answer is no JSON")
        return answer

    def _wait(self, read: list[int], write: list[int]) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or select.select(read, write, [], left) == ([], [], []):
            self._end("its time is over")

    def _end(self, why: str) -> NoReturn:
        self.ended = self.ended or f"the code does not answer: {why}"
        raise CodeEnded(self.ended)


def _not_ending(error: BaseException) -> BaseException:
    """What ends an iteration would end a loop of the test, as if it had seen everything."""
    ends = isinstance(error, StopIteration | StopAsyncIteration)
    return RuntimeError(f"the code raises {type(error).__name__}; {NEEDS_TRUST}") if ends else error
