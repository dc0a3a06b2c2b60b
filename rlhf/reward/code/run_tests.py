"""Run the tests of a row and write a line for each verdict. Shipped into the sandbox: standard library only.

`values_main` parts before it reads anything. The child runs the code. The tests stay in the parent, whose memory and
descriptors are closed to others; there the code's names are `Remote` objects, and the child's answers are only data.
`script_main` runs tests and code in one process. Tests may raise anything, so this catches everything.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import json
import os
import signal
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

LENGTH_DIGITS = 12
PR_SET_DUMPABLE, UNUSED_UID = 4, 60_061
MOST_BYTES, MOST_DEPTH = 4 << 20, 64
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, dict)}
SCALARS: dict[str, Any] = {"int": lambda text: int(text, 16), "bytes": bytes.fromhex, "complex": complex}
EXCEPTIONS: Any = {name: kind for name, kind in vars(builtins).items() if BaseException in getattr(kind, "__mro__", ())}
END_LOOPS = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
"""Exceptions that would end a loop of the tests."""
OPERATIONS = {name for kind in (int, float, complex, str, bytes, list, dict, set) for name in dir(kind)}


def write_verdict(output: int, key: str, place: int | str, why: str = "") -> None:
    """Write a line: the key of this run, a test's index (or "setup", "code", "end"), and why it fails, if it does."""
    os.write(output, f"{key} {place} {' '.join(why[:300].split())}\n".encode(errors="replace"))


def read_request(source: int) -> Any:
    """Read one JSON text of a stream, not a byte of the next. Its length is before it."""
    size, data = int(os.read(source, LENGTH_DIGITS)), b""
    while len(data) < size and (part := os.read(source, size - len(data))):
        data += part
    return json.loads(data)


def take_output() -> int:
    """Return a descriptor of the real standard output; nothing else can read or print afterwards."""
    output, nothing = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    return output


def run_steps(
    steps: Sequence[tuple[str, bool]], namespace: dict[str, Any], write: Callable[..., None], refusal: Callable[[], str]
) -> None:
    """Run texts in one namespace; the flag says whether a text is a test. If a preparation fails, so does the next
    test, or else the last one. `refusal` says why a text fails although it raised nothing."""
    place, broken = 0, ""
    for text, is_test in steps:
        why = broken or failure(text, namespace)
        broken = refusal() or why
        if is_test:
            write(place, broken)
            place, broken = place + 1, ""
    if broken:
        write(place - 1, broken)
    write("end")


def failure(text: str, namespace: dict[str, Any]) -> str:
    """Run a text. Return what it raised, or an empty text."""
    try:
        exec(compile(text, "tests", "exec", dont_inherit=True), namespace)
    except BaseException as error:  # noqa: BLE001
        with contextlib.suppress(BaseException):
            return f"{type(error).__name__}: {error}"
        return "an exception without a text"
    return ""


def script_main() -> NoReturn:
    """Import the code; then read the tests and the key of the verdicts, and run the tests."""
    source, output = os.dup(0), take_output()
    first = read_request(source)
    module: Any = types.ModuleType("solution")
    sys.modules["solution"] = module
    namespace = module.__dict__ if first["together"] else {}
    unusable = failure(first["setup"], namespace)
    broken = "" if unusable else failure(first["code"], module.__dict__)
    rest = read_request(source)
    write = functools.partial(write_verdict, output, rest["key"])
    if not broken and rest["names"] and not any(hasattr(module, name) for name in rest["names"]):
        broken = f"the code defines none of {', '.join(rest['names'])}"
    if unusable or broken:
        write("setup" if unusable else "code", unusable or f"the code does not run: {broken}")
    else:
        namespace["__name__"] = "__main__"
        run_steps(rest["steps"], namespace, write, lambda: "")
    os._exit(0)


class Refused(BaseException):
    """A value cannot cross between the processes. No `except Exception` of a test catches this."""


def pack(value: Any, other: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return a value as JSON. `other` packs what is not plain."""
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if abs(value) < 1 << 60 else ["int", hex(value)]
    if kind in (bytes, complex):
        return [kind.__name__, value.hex() if kind is bytes else str(value)]
    if depth > MOST_DEPTH:
        raise Refused("a value is nested too deeply")
    if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
        return ["dict", [[pack(part, other, depth + 1) for part in pair] for pair in value.items()]]
    if KINDS.get(kind.__name__) is kind:
        return [kind.__name__, [pack(item, other, depth + 1) for item in value]]
    return other(value)


def unpack(node: Any, other: Callable[[str, Any], Any]) -> Any:
    """Return the value that `pack` packed. Raises `Refused`, `ValueError`, `TypeError`, `LookupError`."""
    if type(node) is not list:
        return node
    kind, body = node
    if kind in KINDS:
        items = [["tuple", item] for item in body] if kind == "dict" else body
        return KINDS[kind]([unpack(item, other) for item in items])
    return SCALARS[kind](body) if kind in SCALARS else other(kind, body)


def renewed(old: Any, new: Any) -> Any:
    """Return `old` with the content of `new`: the same lists, dicts and sets."""
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
        self._reads, self._writes = open(reads, "rb"), open(writes, "wb")  # noqa: SIM115

    def send(self, message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        if len(line) > MOST_BYTES:
            raise Refused("a value is too large")
        self._writes.write(line)
        self._writes.flush()

    def receive(self) -> Any:
        line = self._reads.readline(MOST_BYTES)
        if not line.endswith(b"\n"):
            raise Refused("an answer is too large" if line else "the code's process has ended")
        return json.loads(line)


class CodeProcess:
    """The tests' side. A refusal is kept until the test has ended: the test fails even if it catches the exception."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._refused = pipe, ""
        self._remotes: dict[int | str, Remote] = {}

    def refusal(self) -> str:
        """Return why the test that just ran fails, and forget it."""
        why, self._refused = self._refused, ""
        return why

    def refuse(self, why: str) -> NoReturn:
        self._refused = self._refused or why
        raise Refused(why)

    def ask(self, operation: str, target: int | str, *values: Any) -> Any:
        """Return the answer of the code's process, or raise its exception. Lists that the code changed change here."""
        try:
            handed = pack(values, _hand_over)
            self._pipe.send([operation, target, handed])
            raised, answer, after = self._pipe.receive()
            if json.dumps(after) != json.dumps(handed):
                renewed(values, unpack(after, self._remote))
            result = unpack(answer, self._remote)
            exception = EXCEPTIONS["RuntimeError" if raised in END_LOOPS else raised](*result) if raised else None
        except (Refused, OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            self.refuse(str(error) if type(error) is Refused else f"no answer: {type(error).__name__}")
        if exception is not None:
            raise exception
        return result

    def _remote(self, kind: str, number: Any) -> Remote:
        return self._remotes.setdefault(number, Remote(self, number))


class Remote:
    """A name or object of the code, for calls, iteration and plain attributes. Any other use fails the test."""

    __slots__ = ("_code", "_target")

    def __init__(self, code: CodeProcess, target: int | str) -> None:
        object.__setattr__(self, "_code", code)
        object.__setattr__(self, "_target", target)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._code.ask("call", self._target, given, named)

    def __getattr__(self, name: str) -> Any:
        return _refusing(name)(self) if name.startswith("__") else self._code.ask("get", self._target, name)

    def __iter__(self) -> Any:
        return self._code.ask("iter", self._target)

    def __next__(self) -> Any:
        for item in self._code.ask("next", self._target):
            return item
        raise StopIteration


def _refusing(name: str) -> Callable[..., Any]:
    return lambda remote, *given: remote._code.refuse(f"the tests use {name} of an object of the code")


KEEP = {*vars(Remote), "__new__", "__class__", "__getattribute__", "__init_subclass__", "__subclasshook__", "__len__"}
for _name in OPERATIONS - KEEP:  # without a length, which Python asks for before it iterates
    if _name.startswith("__"):
        setattr(Remote, _name, _refusing(_name))


def _hand_over(value: Any) -> Any:
    if type(value) is not Remote:
        raise Refused(f"the tests pass a {type(value).__name__}, not a plain value")
    return ["object", value._target]


class CodeServer:
    """The code's side. Its answers are the code's word anyway, so nothing here is guarded."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._module = pipe, types.ModuleType("solution")
        self._objects: dict[int | str, Any] = {}
        sys.modules["solution"] = self._module

    def serve(self) -> NoReturn:
        """Run the code, then answer until the tests end."""
        while True:
            operation, target, handed = self._pipe.receive()
            values = unpack(handed, self._found)
            try:
                raised, answer = "", pack(self._result(operation, target, values), self._object)
            except BaseException as error:  # noqa: BLE001
                raised, answer = self._exception(error)
            self._pipe.send([raised, answer, pack(values, self._object)])

    def _result(self, operation: str, target: int | str, values: Any) -> Any:
        if operation == "run":
            return failure(values[0], self._module.__dict__)
        found = self._found("object", target)
        if operation == "iter":
            return iter(found)
        if operation == "next":
            return next(([item] for item in found), [])
        return getattr(found, values[0]) if operation == "get" else found(*values[0], **values[1])

    def _found(self, kind: str, target: int | str) -> Any:
        """Return an object, or what the code binds to a name: a function, or a method of a class `Solution`."""
        if target in self._objects:
            return self._objects[target]
        owner, solution, name = self._module, getattr(self._module, "Solution", None), str(target)
        if not hasattr(owner, name) and not hasattr(solution, name):
            raise NameError(f"name {name!r} is not defined")
        return getattr(owner if hasattr(owner, name) else owner.Solution(), name)

    def _object(self, value: Any) -> Any:
        """Return a number of numpy as Python's; any other object by a number: it stays here."""
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.number | numpy.bool_):
            return pack(value.item(), self._object)
        self._objects[id(value)] = value
        return ["object", id(value)]

    def _exception(self, error: BaseException) -> tuple[str, Any]:
        base = next(kind for kind in type(error).__mro__ if kind in EXCEPTIONS.values())
        has_text = vars(type(error)).get("__str__", base.__str__) is not base.__str__
        text = pack((str(error),), self._object)
        given = text if has_text else pack(tuple(error.args), lambda value: text)
        return base.__name__, given


def values_main() -> NoReturn:
    """Fork into the process of the code and that of the tests, and run the tests."""
    requests, answers = os.pipe(), os.pipe()
    if os.fork() == 0:
        for descriptor in (requests[1], answers[0], take_output()):
            os.close(descriptor)
        if os.geteuid() == 0:  # a foreign sandbox runs programs as root, which may read any memory
            os.chown(".", UNUSED_UID, UNUSED_UID)
            os.setgroups([])
            os.setresgid(*[UNUSED_UID] * 3)
            os.setresuid(*[UNUSED_UID] * 3)
        CodeServer(Pipe(requests[0], answers[1])).serve()
    os.close(requests[0])
    os.close(answers[1])
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)  # where a filter refuses it, the filter and Landlock close the memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = read_request(0)
    write = functools.partial(write_verdict, take_output(), request["key"])
    code = CodeProcess(Pipe(answers[0], requests[1]))
    here = ("", os.getcwd(), os.path.dirname(os.path.abspath(sys.argv[0])))
    sys.path[:] = [folder for folder in sys.path if folder not in here]  # the code can write there
    os.chdir("/")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    if why := failure(request["setup"], namespace):
        write("setup", why)
    elif why := failure("why = run(); assert not why, why", {"run": lambda: code.ask("run", "", request["code"])}):
        write("code", f"the code does not run: {why}")
    else:
        module: Any = types.ModuleType("solution")
        sys.modules["solution"] = module
        module.__getattr__, module.__all__ = lambda name: Remote(code, name), request["names"]
        namespace |= {name: Remote(code, name) for name in request["names"]}
        run_steps(request["steps"], namespace, write, code.refusal)
    os._exit(0)
