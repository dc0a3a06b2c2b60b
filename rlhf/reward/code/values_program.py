"""Run tests in one process and the code in another, with plain values between them. Shipped into the sandbox.

The first process parts before it reads anything. Its child gets the code and two pipes. The tests stay in the first
process, whose memory and descriptors are closed to others; there the code's names are `Remote` objects. What the
code's process answers is data: nothing is imported, called or rebuilt because it says so. Standard library only.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import json
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from rlhf.reward.code.run_tests import Verdicts, failure, prepare, read_request, run_steps, take_output

PR_SET_DUMPABLE, UNUSED_UID = 4, 60_061
MOST_BYTES, MOST_DEPTH = 4 << 20, 64
Json = Any
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, dict)}
TYPES = [kind for kind in vars(builtins).values() if isinstance(kind, type)]
EXCEPTIONS: dict[str, Any] = {kind.__name__: kind for kind in TYPES if issubclass(kind, BaseException)}
END_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)
OPERATORS = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
REFUSED = f"""eq ne lt le gt ge bool hash str repr format bytes len length_hint contains getitem setitem delitem
    reversed neg pos abs invert int float complex index round trunc floor ceil enter exit await aiter anext
    setattr delattr dir reduce reduce_ex copy deepcopy get set instancecheck subclasscheck mro_entries {OPERATORS}
    {OPERATORS.replace(" ", " r")} radd {OPERATORS.replace(" ", " i")} iadd"""


class Refused(BaseException):
    """Something cannot cross. No `except Exception` of a test catches it."""


def pack(value: Any, other: Callable[[Any], Json], depth: int = 0) -> Json:
    """A value as JSON. `other` packs what is not plain."""
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if abs(value) < 1 << 60 else ["int", hex(value)]
    if kind in (bytes, complex):
        return [kind.__name__, value.hex() if kind is bytes else [value.real, value.imag]]
    if depth > MOST_DEPTH:
        raise Refused("a value is nested too deeply")
    if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
        return ["dict", [[pack(part, other, depth + 1) for part in pair] for pair in value.items()]]
    if KINDS.get(kind.__name__) is kind:
        return [kind.__name__, [pack(item, other, depth + 1) for item in value]]
    return other(value)


def unpack(node: Json, other: Callable[[str, Json], Any], depth: int = 0) -> Any:
    """The value that `pack` packed. Raises `Refused`, `ValueError`, `TypeError`, `LookupError` for anything else."""
    if type(node) is dict:
        raise Refused("an answer is no value")
    if type(node) is not list:
        return node
    kind, body = node
    if kind in KINDS and depth <= MOST_DEPTH:
        items = [["tuple", item] for item in body] if kind == "dict" else body
        return KINDS[kind]([unpack(item, other, depth + 1) for item in items])
    if kind == "complex":
        return complex(*body)
    if kind in ("int", "bytes"):
        return int(body, 16) if kind == "int" else bytes.fromhex(body)
    return other(kind, body)


def renewed(old: Any, new: Any) -> Any:
    """What stands for `new` where `old` was handed over: the same lists, dicts and sets, with the new content."""
    if type(old) is not type(new) or type(old) not in (list, tuple, dict, set):
        return new
    if type(old) is dict:
        content: Any = {key: renewed(old.get(key), value) for key, value in new.items()}
    else:
        ordered = type(old) is not set and len(old) == len(new)
        content = [renewed(*pair) for pair in zip(old, new, strict=True)] if ordered else new
    if type(old) is tuple:
        return tuple(content)
    old.clear()
    old.extend(content) if type(old) is list else old.update(content)
    return old


class Pipe:
    """Lines of JSON to and from the other process."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes, self._rest = reads, writes, b""

    def send(self, message: Json) -> None:
        line = json.dumps(message).encode() + b"\n"
        if len(line) > MOST_BYTES:
            raise Refused("a value is too large")
        while line:
            line = line[os.write(self._writes, line) :]

    def receive(self) -> Json:
        parts, size = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            parts.append(part := os.read(self._reads, 1 << 16))
            size += len(part)
            if not part or size > MOST_BYTES:
                raise Refused("an answer is too large" if part else "the code's process has ended")
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return json.loads(line)


class CodeProcess:
    """The tests' side. A refusal is kept until the test has ended, which fails even if it catches what is raised."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._refused, self._ended = pipe, "", ""
        self._remotes: dict[int, Remote] = {}

    def run(self, code: str) -> str:
        """Let the other process run the code. Returns why it does not run, or an empty text."""
        try:
            self._pipe.send(code)
            return str(self._pipe.receive())
        except (Refused, OSError, ValueError, RecursionError) as error:
            return str(error)

    def refusal(self) -> str:
        """Why the test that just ran fails; forgotten afterwards."""
        why, self._refused = self._refused, ""
        return why

    def refuse(self, why: str) -> NoReturn:
        self._refused = self._refused or why
        raise Refused(why)

    def ask(self, operation: str, target: int | str, *values: Any) -> Any:
        """Return what the code's process answers, or raise what the code raised. Lists that it changed change here."""
        try:
            handed = pack(values, _hand_over)
            if self._ended:
                raise Refused(self._ended)
        except (Refused, RecursionError) as error:
            self.refuse(str(error))
        try:
            self._pipe.send([operation, target, handed])
            raised, answer, after = self._pipe.receive()
            if json.dumps(after) != json.dumps(handed):
                renewed(values, unpack(after, self._object))
            result = unpack(answer, self._object)
            exception = made_exception(raised, result) if raised else None
        except (Refused, OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            self._ended = str(error) if type(error) is Refused else f"no answer: {type(error).__name__}"
            self.refuse(self._ended)
        if exception is not None:
            raise exception
        return result

    def _object(self, kind: str, number: Json) -> Any:
        if kind not in ("object", "iterator") or type(number) not in (int, str):
            raise Refused("an answer is no value")
        return self._remotes.setdefault(number, Remote(self, number, iterates=kind == "iterator"))


class Remote:
    """A name or an object of the code. It may be called, its plain attributes read and, if it is an iterator, its items
    taken. Any other use fails the test, also one by Python or a library."""

    __slots__ = ("_code", "_iterates", "_target")

    def __init__(self, code: CodeProcess, target: int | str, *, iterates: bool = False) -> None:
        for name, value in (("_code", code), ("_target", target), ("_iterates", iterates)):
            object.__setattr__(self, name, value)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._code.ask("call", self._target, given, named)

    def __getattr__(self, name: str) -> Any:
        return _refusing(name)(self) if name.startswith("__") else self._code.ask("get", self._target, name)

    def __iter__(self) -> Remote:
        return self if self._iterates else _refusing("iter")(self)

    def __next__(self) -> Any:
        for item in self._code.ask("next", self._target) if self._iterates else _refusing("next")(self):
            return item
        raise StopIteration


def _refusing(name: str) -> Callable[..., Any]:
    return lambda remote, *given: remote._code.refuse(f"the tests use {name} of an object of the code")


for _name in REFUSED.split():
    setattr(Remote, f"__{_name}__", _refusing(_name))


def _hand_over(value: Any) -> Json:
    if type(value) is not Remote:
        raise Refused(f"the tests hand over a {type(value).__name__}, which is no plain value")
    return ["iterator" if value._iterates else "object", value._target]


def made_exception(name: str, given: tuple[Any, ...]) -> BaseException:
    """The builtin exception of that name. One that would end a loop of the tests becomes a `RuntimeError`."""
    kind = EXCEPTIONS[name]
    for base in () if issubclass(kind, END_LOOPS) else kind.__mro__:
        with contextlib.suppress(TypeError):  # it wants other arguments
            exception: BaseException = base(*given)
            return exception
    return RuntimeError(f"the code raises {name}")


class CodeServer:
    """The code's side. What it says is the code's word anyway, so nothing here is guarded."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._module = pipe, types.ModuleType("solution")
        self._objects: dict[int | str, Any] = {}
        sys.modules["solution"] = self._module

    def serve(self) -> NoReturn:
        """Run the code, then answer until the tests end."""
        self._pipe.send(failure(self._pipe.receive(), self._module.__dict__))
        while True:
            operation, target, handed = self._pipe.receive()
            values = unpack(handed, self._found)
            try:
                raised, answer = "", pack(self._result(operation, target, values), self._object)
            except Refused:
                raise
            except BaseException as error:  # noqa: BLE001
                raised, answer = self._exception(error)
            self._pipe.send([raised, answer, pack(values, self._object)])

    def _result(self, operation: str, target: int | str, values: Any) -> Any:
        found = self._found("object", target)
        if operation == "next":
            return next(([item] for item in found), [])
        return getattr(found, values[0]) if operation == "get" else found(*values[0], **values[1])

    def _found(self, kind: str, target: int | str) -> Any:
        """An object, or what the code binds to a name: a function, or a method of a class `Solution`."""
        if target not in self._objects:
            named, solution = str(target), getattr(self._module, "Solution", None)
            if not hasattr(self._module, named) and hasattr(solution, named):
                return getattr(self._module.Solution(), named)
            if not hasattr(self._module, named):
                raise NameError(f"name {named!r} is not defined")
            return getattr(self._module, named)
        return self._objects[target]

    def _object(self, value: Any) -> Json:
        """A number of numpy as Python's; any other object by a number: it stays here."""
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.number | numpy.bool_):
            return pack(value.item(), self._object)
        self._objects[id(value)] = value
        return ["iterator" if hasattr(value, "__next__") else "object", id(value)]

    def _exception(self, error: BaseException) -> tuple[str, Json]:
        base = next(kind for kind in type(error).__mro__ if kind in EXCEPTIONS.values())
        has_text = vars(type(error)).get("__str__", base.__str__) is not base.__str__
        text = pack((str(error),), self._object)
        given = text if has_text else pack(tuple(error.args), lambda value: text)
        return base.__name__, given


def values_main() -> NoReturn:
    """Part into the process of the code and that of the tests, and run the tests."""
    requests, answers = os.pipe(), os.pipe()
    if os.fork() == 0:
        for descriptor in (requests[1], answers[0], take_output()):
            os.close(descriptor)
        if os.geteuid() == 0:  # a foreign sandbox runs programs as root, who may read any memory
            os.chown(".", UNUSED_UID, UNUSED_UID)
            os.setgroups([])
            os.setresgid(*[UNUSED_UID] * 3)
            os.setresuid(*[UNUSED_UID] * 3)
        CodeServer(Pipe(requests[0], answers[1])).serve()
    os.close(requests[0])
    os.close(answers[1])
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)  # where a filter refuses it, the filter and Landlock close the memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = read_request(0)
    verdicts, code = Verdicts(request["key"], take_output()), CodeProcess(Pipe(answers[0], requests[1]))
    here = ("", os.getcwd(), os.path.dirname(os.path.abspath(sys.argv[0])))
    sys.path[:] = [folder for folder in sys.path if folder not in here]  # the code can write there
    os.chdir("/")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    if why := prepare(request["modules"], request["setup"], namespace):
        verdicts.write("setup", why)
    elif why := code.run(request["code"]):
        verdicts.write("code", f"the code does not run: {why}")
    else:
        module: Any = types.ModuleType("solution")
        sys.modules["solution"] = module
        module.__getattr__, module.__all__ = lambda name: Remote(code, name), request["names"]
        namespace |= {name: Remote(code, name) for name in request["names"]}
        run_steps(request["steps"], namespace, verdicts, code.refusal)
    os._exit(0)
