"""Proxy of the untrusted code for the tests: functions and objects in another process that return plain values."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NoReturn

from rlhf.reward.code.checking.alarms import alarms_come, alarms_wait
from rlhf.reward.code.checking.arrays import OF_ARRAYS
from rlhf.reward.code.checking.classes import Classes
from rlhf.reward.code.checking.exceptions import (
    chain_value,
    change_exception,
    class_of,
    exception,
    exception_parts,
    leave_frames,
    linked,
)
from rlhf.reward.code.checking.kinds import ALIKE, BASES, CHANGEABLE, NUMBER, kin_of
from rlhf.reward.code.checking.parameters import library_name, parameters_of
from rlhf.reward.code.checking.recursion import room_for_a_message
from rlhf.reward.code.checking.settings import Followed
from rlhf.reward.code.checking.shared import OF_THE_TESTS, Lost, Shared
from rlhf.reward.code.checking.stand_ins import STAND_INS, KindOfExceptions, KindOfStandIn
from rlhf.reward.code.checking.values import MOST_BYTES, Met, NoValue, line_with, of_json, unpack_value

Answer = tuple[dict[str, Any], list[Any]]
"""What is said, and the values."""
SLEEP = time.sleep
KNOWN: list[Any] = [lambda: None]
ALONE = sys.getrefcount(KNOWN[0])
"""So many references has a function that nothing but one list has."""
ENDS = re.compile(r"\b(__del__|eval|except|exec|finally|locals|setattr|type|vars|weakref|with)\b")
"""What code has of which something happens when an object of its is dropped, or that makes such code."""
NEEDS_TRUST = "such tests need reward.code.tests: trusting"


class CodeEnded(Exception):
    """The process of the code has ended, or violates the protocol."""


class NeedsTrusting(Exception):
    """The test uses an object in a way that only works in the code's own process."""


class Link:
    """Asks the process of the code one thing at a time. `objection` says why no test passes any more, or this one;
    `asked` how often the code was asked for what it has.

    A test may leave an exchange (by an alarm that it sets): its answer is heard, and is none to what is asked next. The
    code has the recursion limit that the set-up or a test chose last."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = os.fdopen(requests, "wb"), os.fdopen(answers, "rb")
        self._functions: list[Any] = []
        self._held: set[int] = set()
        self._kinds: dict[int, Any] = {}
        self._stand_ins: dict[tuple[str, int], weakref.ref[Any]] = {}
        self._dead: list[int] = []
        self._raised: list[BaseException] = []
        self._under_way: list[BaseException] = []
        self._exceptions = Classes(self)
        self._shared = Shared(OF_THE_TESTS, _hangs)
        self.followed = Followed()
        self.kin = {base: kin_of(base, self) for base in BASES}
        self._calling_back = self._is_asking = self._is_waiting = self._has_slept = self.is_taking = False
        self._acts_at_ends = False
        KindOfStandIn.link = self
        self.ended = self.objection = ""
        self.asked = self._recursion = 0

    def run(self, code: str) -> None:
        """Run the code. Raises what the code raises, and `CodeEnded`."""
        self._acts_at_ends = ENDS.search(code) is not None
        self._exchange({"do": "run", "code": code})

    def trust(self, test: str) -> None:
        """Run a test in the code's own process. Raises what it raises there."""
        self._exchange({"do": "test", "code": test})
        self.asked += 1

    def name(self, name: str) -> Any:
        """The code's current value of that name. Raises `KeyError`, also for a module."""
        answer, values = self._asked({"do": "name", "name": name})
        if answer.get("missing") is True:
            raise KeyError(name)
        self.asked += 1
        return self._only(values)

    def ask(self, operation: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result of an operation on the code's objects."""
        self.asked += 1
        answer, values = self._asked({"do": operation}, [arguments, tuple(named.items())])
        result = self._only(values)
        if operation == "next" and answer.get("end") is True:
            raise StopIteration(result)
        return result

    def sleep(self, seconds: Any) -> None:
        """As `time.sleep`: threads of the code go on meanwhile, and may call functions of the test."""
        began = time.monotonic()
        self._has_slept = True
        if self._is_free():
            self._exchange({"do": "sleep"}, [(seconds,), ()])
        SLEEP(max(seconds - (time.monotonic() - began), 0))

    def _is_free(self) -> bool:
        is_free = not self._calling_back and not self._is_asking
        return is_free and threading.current_thread() is threading.main_thread()

    def refuse(self, what: str, advice: str = NEEDS_TRUST) -> NoReturn:
        """Fail the test because it cannot be judged from this process; a test that catches the exception still
        fails."""
        self.objection = self.objection or f"{what}; {advice}"
        raise NeedsTrusting(self.objection)

    def stop(self, what: str) -> NoReturn:
        """Fail the test, and every test after it, whatever they do about it."""
        self.ended = self.ended or f"{what}; {NEEDS_TRUST}"
        raise NeedsTrusting(self.ended)

    def _asked(self, request: dict[str, Any], values: Sequence[Any] = ()) -> Answer:
        if self._calling_back:
            self.refuse("a function that a test hands over calls the code")
        if threading.current_thread() is not threading.main_thread():
            self.refuse("a thread of a test asks the code, which answers one at a time and would show no race")
        if self._is_asking:
            self.refuse("a handler of a signal or a finalizer asks the code while it is asked")
        return self._exchange(request, values)

    def _exchange(self, request: dict[str, Any], values: Sequence[Any] = ()) -> Answer:
        """What the code answers, with its values. Raises what the code raises."""
        limit = sys.getrecursionlimit()
        with alarms_wait(), room_for_a_message(), self._one_at_a_time():  # no alarm while values are on their way
            if self._is_waiting:
                self._receive()
            if limit != self._recursion:
                self._recursion, request["recursion"] = limit, limit
            try:
                line = self._line(request, [*values])
            except NoValue as error:
                self.refuse(str(error))
            self._send(line)
            self._is_waiting = True
            answer, values = self._receive()
        if "unfit" in answer:
            self.refuse(f"an answer of the code cannot be sent ({str(answer['unfit'])[:100]})")
        if "raised" in answer:
            raise self._exception(answer, values)
        return answer, values

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        self._is_asking = True
        try:
            yield
        finally:
            self._is_asking = False

    def _exception(self, told: dict[str, Any], parts: list[Any]) -> BaseException:
        """What the code raises. An exception of the test's own is that again."""
        if "of_test" in told:
            if type(number := told["of_test"]) is not int or not 0 <= number < len(self._raised):
                self._end("it raises what no test has raised")
            raised = self._raised[number]
            self._under_way.append(raised)
            self._change(raised, parts)
        else:
            try:
                origin = unpack_value(told.get("object"), self._find, Met())
                raised = exception(told, parts, origin, self._exceptions.numbered)
            except NoValue as error:
                self._end(str(error))
        if isinstance(raised, StopIteration):
            self.refuse("the code raises StopIteration, which would end a loop of the test")
        return raised

    def _change(self, raised: BaseException, parts: list[Any]) -> None:
        """What the code has set on an exception of the test's."""
        try:
            change_exception(raised, parts)
        except NoValue as error:
            self._end(str(error))

    def _only(self, values: list[Any]) -> Any:
        if len(values) != 1:
            self._end("it gave no result")
        return values[0]

    def _receive(self) -> Answer:
        """The answer to the last request. Functions of the test that the code calls meanwhile are called."""
        while "function" in (answer := self._read()):
            self._call_back(answer)
        self._is_waiting = False
        return answer, [] if "unfit" in answer else self._taken(answer)

    def _taken(self, message: dict[str, Any]) -> list[Any]:
        self.is_taking = True
        try:
            return self._shared.take(message, self._find)
        except Lost as error:
            self.refuse(str(error))
        except NoValue as error:
            self._end(str(error))
        finally:
            self.is_taking = False

    def _call_back(self, asked: dict[str, Any]) -> None:
        """Call a function that the test passed to the code, and tell what it returns or raises."""
        function = self._own(asked["function"])
        try:
            values = self._taken(asked)
        except NeedsTrusting as error:  # the code waits for an answer
            about, result = self._told(error)
            self._send(self._line(about | {"slept": False}, result))
            return
        if len(values) != 2 or not all(type(value) is tuple for value in values):
            self._end("it calls a function with nothing")
        try:
            about, result = self._called(function, values[0], {str(name): value for name, value in values[1]})
        except (TypeError, ValueError):
            self._end("it calls a function with what has no name")
        slept = {"slept": self._has_slept}
        try:
            line = self._line(about | slept, result)
        except NoValue as error:
            about, result = self._told(error)
            line = self._line(about | slept, result)
        self._send(line)

    def _called(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Answer:
        self._calling_back, self._has_slept = True, False
        try:
            with alarms_come():
                return {}, [function(*arguments, **named)]
        except BaseException as error:  # noqa: BLE001 - a function of the test, called with anything
            return self._told(error)
        finally:
            self._calling_back = False

    def _told(self, error: BaseException) -> Answer:
        if isinstance(error, NoValue):  # the code may catch it, and the test never know
            self.objection = self.objection or f"{error}; {NEEDS_TRUST}"
        leave_frames(error)
        is_ours = isinstance(error, NoValue | NeedsTrusting)
        chain: list[BaseException] = [error] if is_ours else linked(error)
        told = chain_value(chain, len(self._raised), self._exceptions.number)
        self._raised += chain
        return {"chain": told}, [exception_parts(one, attributes=True) for one in chain]

    def _own(self, number: Any) -> Any:
        """The function that the test passed to the code."""
        if type(number) is not int or not 0 <= number < len(self._functions):
            self._end("it calls a function that it was not given")
        return self._functions[number]

    def _send(self, line: bytes) -> None:
        if self.ended:
            raise CodeEnded(self.ended)
        try:
            self._requests.write(line + b"\n")
            self._requests.flush()
        except OSError:
            self._end("its process has ended")

    def _read(self) -> dict[str, Any]:
        with alarms_come():
            self._answers.peek(1)  # waits, and takes nothing away
        line = self._answers.readline(MOST_BYTES)
        if not line.endswith(b"\n"):
            self._end(f"an answer has more than {MOST_BYTES} bytes" if line else "its process has ended")
        try:
            answer = of_json(line)
        except (ValueError, RecursionError):
            answer = None
        if type(answer) is not dict:
            self._end("an answer is no JSON")
        return answer

    def _end(self, why: str) -> NoReturn:
        self.ended = f"the code does not answer: {why}"
        raise CodeEnded(self.ended)

    def _find(self, kind: str, known_by: Any) -> Any:
        if kind == "kin":
            return self._kind_of(*known_by)
        if kind in OF_ARRAYS:
            try:
                return OF_ARRAYS[kind](known_by, importlib.import_module("numpy"))
            except ImportError:
                self.refuse("an answer is of numpy's, which the tests' Python does not load")
        if kind == "own":
            function = self._own(known_by)
            self._held.add(known_by)
            return function
        if kind == "exceptions":
            return class_of(known_by, self._exceptions.numbered)
        if kind not in STAND_INS or type(known_by) is not int:
            raise NoValue("what arrived is no value")
        reference = self._stand_ins.get((kind, known_by))
        if reference is None or (known := reference()) is None:
            known = STAND_INS[kind](self, known_by)
            self._stand_ins[kind, known_by] = weakref.ref(known, partial(self._bury, kind, known_by))
        return known

    def _bury(self, kind: str, number: int, reference: Any) -> None:
        """The test has an object no longer, and so the code's process need not keep it for the test."""
        if self._stand_ins.get((kind, number)) is reference:
            del self._stand_ins[kind, number]
            self._dead.append(number)
            if self._acts_at_ends and not self._is_waiting and self._is_free():
                with contextlib.suppress(CodeEnded, NeedsTrusting):  # whoever asks next learns of it
                    self._exchange({"do": "end"})

    def _line(self, about: dict[str, Any], values: list[Any]) -> bytes:
        """A message, and what the test no longer has once it is made. Raises `NoValue`, and is no message then."""
        try:
            line = self._shared.line(about | self.followed.told(), values, self._keep, math.inf)
        except NoValue:
            self.followed.tell_again()
            raise
        while self._under_way:  # a test has caught what it raised, which is kept without what it came from
            leave_frames(self._under_way.pop())
        dead, self._dead = self._dead, []
        again = [any((kind, number) in self._stand_ins for kind in STAND_INS) for number in dead]
        dead = [number for number, lives in zip(dead, again, strict=True) if not lives]
        unheld = [number for number in self._held if sys.getrefcount(self._functions[number]) <= ALONE]
        self._held.difference_update(unheld)
        return line_with(line, {"dead": dead, "unheld": unheld})

    def _kind_of(self, beneath: Any, number: Any = None) -> Any:
        """A value of a kind of a plain type; of a changeable one, whose name arrives, an empty one."""
        if number is None:
            return self.kin[{base.__name__: base for base in CHANGEABLE}[beneath]]()
        if type(number) is not int or type(beneath) not in self.kin or type(beneath) in CHANGEABLE:
            raise NoValue("what arrived is no kind")
        known = self._kinds.get(number)
        if known is None or known != beneath or type(beneath) not in ALIKE:
            known = self.kin[type(beneath)](beneath)
            vars(known)[NUMBER] = number
            if type(beneath) in ALIKE:
                self._kinds[number] = known
        return known

    def _keep(self, value: Any) -> Any:
        """How a value of the test that is not plain is sent to the code: the code's own objects as references, built-in
        functions by name, the test's functions as callbacks. Raises `NoValue`."""
        if type(value) in STAND_INS.values():
            return {"object": value._rlhf_number}
        if type(value) is KindOfExceptions and type(vars(value).get(NUMBER)) is int:
            return {"object": vars(value)[NUMBER]}
        base: Any = type(value).__base__
        if type(value) is self.kin.get(base):
            if base not in CHANGEABLE:
                return {"object": vars(value)[NUMBER]}
            if (shared := self._shared.number(value)) is None:  # one of the test's own making
                raise NoValue(f"a test hands a kind of {base.__name__} to the code")
            return {"met": shared}
        sleeps = type(value) is MethodType and value == self.sleep
        named = ("time", "sleep") if sleeps else library_name(value)
        if not named and type(value) is not FunctionType:
            raise NoValue(f"a test hands an object of type {type(value).__name__} to the code")
        number = next((number for number, known in enumerate(self._functions) if known is value), len(self._functions))
        if number == len(self._functions):
            self._functions.append(value)
        if not named:
            self._held.add(number)
        about: Any = named or self._about(value)
        return {"named" if named else "function": [number, *about]}

    def _about(self, function: FunctionType) -> list[Any]:
        """What the code's process knows of a function of the test: what it is called, its parameters, and, shared as
        dictionaries are, its annotations and attributes; None where there are none or they cannot be sent, `False` for
        annotations that cannot."""
        called = [function.__name__, function.__qualname__, function.__module__, function.__doc__]
        more = [self._shared.packed(part, self._keep) for part in (function.__annotations__ or None, vars(function))]
        more[0] = False if more[0] is None and function.__annotations__ else more[0]
        return [*called, parameters_of(function), *more]


def _hangs(item: Any) -> bool:
    """Whether the code's process keeps something for this item of a test."""
    return type(item) is FunctionType or type(item) in STAND_INS.values()
