"""What stands for objects and functions of the code in the process of the tests: what a test does with them is asked of
the code, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from rlhf.reward.code.checking.exceptions import ORIGIN, says
from rlhf.reward.code.checking.kinds import BINDS, NUMBER

LINK = "_rlhf_link"


class Asked(Protocol):
    """Asks the code."""

    is_taking: bool
    """Whether values of the code are arriving."""
    kin: dict[Any, type]
    """By the plain type the type for values whose type in the code is a subclass of it."""

    def ask(self, operation: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result of an operation on the code's objects."""
        ...

    def refuse(self, what: str) -> NoReturn:
        """Fail the test because it cannot be judged from this process."""
        ...


def _refused(doing: str) -> Any:
    def refused(this: ObjectOfTheCode, *others: Any) -> NoReturn:
        this._rlhf_link.refuse(f"a test {doing} an object of the code")

    return refused


ARITHMETIC = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "xor"),
    *("or", "neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil", "complex"),
)
REFUSED: dict[str, tuple[str, ...]] = {
    "compares": ("eq", "ne", "lt", "le", "gt", "ge"),
    "asks for instances of": ("instancecheck", "subclasscheck"),
    "converts": ("bool", "str", "repr", "format", "index", "int", "float", "bytes", "fspath"),
    "changes": ("setattr", "delattr", "setitem", "delitem"),
    "computes with": tuple(f"{form}{name}" for name in ARITHMETIC for form in ("", "r", "i")),
    "enters": ("enter", "exit", "aenter", "aexit", "await", "aiter", "anext"),
    "measures": ("sizeof",),
    "copies": ("copy", "deepcopy", "reduce", "reduce_ex", "getstate"),
}
"""Without these methods, Python would answer for the proxy instead of the code's object."""


ABOUT = ("__name__", "__qualname__", "__doc__", "__module__")
OF_FUNCTIONS = (*ABOUT, "__dict__", "__annotations__", "__type_params__")
"""What `functools.wraps` and `staticmethod` read of a function."""
OPEN = ("__name__", "__slots__")
"""What Python reads of the proxies' classes where it prints their name, and this module."""


class KindOfStandIn(type):
    """The type of the proxies' classes: what has the class of a proxy at hand (`typing`, an abstract base class) learns
    from it no more than from the proxy."""

    link: Asked

    def __getattribute__(cls, name: str) -> Any:
        if name not in OPEN:
            KindOfStandIn.link.refuse(f"a test asks for the {name.strip('_')} of a class of the code's objects")
        return super().__getattribute__(name)


OF_THE_LINK = ("_rlhf_link", "_rlhf_number")


class ObjectOfTheCode(metaclass=KindOfStandIn):
    """A proxy for an object of the code. It gives plain values, or further proxies, for an attribute, an item, its
    length, containment of a value, or iteration. Nothing else is supported: neither equality nor truth value."""

    __slots__ = ("__weakref__", *OF_THE_LINK)
    _rlhf_link: Asked
    _rlhf_number: int

    def __init__(self, link: Asked, number: int) -> None:
        object.__setattr__(self, "_rlhf_link", link)
        object.__setattr__(self, "_rlhf_number", number)

    def __getattribute__(self, name: str) -> Any:
        if name in OF_THE_LINK:
            return object.__getattribute__(self, name)
        if name.startswith("__") and name not in (
            OF_FUNCTIONS if type(self) in CALLABLE else ABOUT
        ):  # its class too, which `isinstance` asks for
            self._rlhf_link.refuse(f"a test reads {name} of an object of the code")
        return self._rlhf_link.ask("attribute", (self, name), {})

    def __hash__(self) -> int:
        """It may be a key of a dict that the code answers; no test looks one up."""
        return object.__hash__(self) if self._rlhf_link.is_taking else _refused("compares")(self)

    def __getitem__(self, key: Any) -> Any:
        return self._rlhf_link.ask("item", (self, key), {})

    def __contains__(self, value: Any) -> Any:
        return self._rlhf_link.ask("contains", (self, value), {})

    def __len__(self) -> int:
        length: int = self._rlhf_link.ask("length", (self,), {})
        return length

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = self._rlhf_link.ask("iterate", (self,), {})
        return iterator

    def __reversed__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = self._rlhf_link.ask("reversed", (self,), {})
        return iterator

    def __next__(self) -> Any:
        return self._rlhf_link.ask("next", (self,), {})


for doing, names in REFUSED.items():
    for name in names:
        setattr(ObjectOfTheCode, f"__{name}__", _refused(doing))


class CallableOfTheCode(ObjectOfTheCode):
    """A proxy for something that is called: a class, a method of an object."""

    __slots__ = ()

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self._rlhf_link.ask("call", (self, *arguments), named)


class FunctionOfTheCode(CallableOfTheCode):
    """A proxy for a function."""

    __slots__ = ()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is not None:
            self._rlhf_link.refuse("a test has a function of the code for a method")
        return self


class DescriptorOfTheCode(ObjectOfTheCode):
    """A proxy for a descriptor, which Python asks for what an attribute is where a test's class has it."""

    __slots__ = ()


class CallableDescriptorOfTheCode(CallableOfTheCode):
    """A proxy for a descriptor that is called, such as a decorator that is a class."""

    __slots__ = ()


for descriptor in (DescriptorOfTheCode, CallableDescriptorOfTheCode):
    for name in BINDS:
        setattr(descriptor, name, _refused("has, as an attribute of a class,"))

STAND_INS: dict[str, type[ObjectOfTheCode]] = {
    "object": ObjectOfTheCode,
    "callable": CallableOfTheCode,
    "function": FunctionOfTheCode,
    "descriptor": DescriptorOfTheCode,
    "callable descriptor": CallableDescriptorOfTheCode,
}
"""By the kind of a reference (`reference_kind`)."""
CALLABLE = (CallableOfTheCode, FunctionOfTheCode, CallableDescriptorOfTheCode)


class KindOfExceptions(type):
    """The type of the classes that stand for classes of exceptions of the code: tests await them. What such a class has
    is asked of the code's."""

    @staticmethod
    def made(link: Asked, number: Any, name: str, bases: tuple[Any, ...], ways: tuple[str, ...]) -> Any:
        """The class with this number. Its methods of these names are not there for tests, but for what its exceptions
        say, which is asked of the code."""

        def refused(error: BaseException, *others: Any) -> NoReturn:
            link.refuse(f"a test uses a method of {name}, an exception of the code's, other than __str__")

        def changed(error: BaseException, attribute: str, *value: Any) -> None:
            if ORIGIN in vars(error) and not attribute.startswith("__"):  # made, and not Python's own
                link.refuse(f"a test changes {attribute} of {name}, an exception of the code's")
            (object.__setattr__ if value else object.__delattr__)(error, attribute, *value)

        own: dict[str, Any] = dict.fromkeys(ways, refused) | {
            "__setattr__": changed,
            "__delattr__": changed,
            "__getattr__": _attribute_of_exception,
            "args": property(lambda error: _attribute_of_exception(error, "args")),
        }
        if "__str__" in ways:
            own["__str__"] = lambda error: link.ask("text", (vars(error)[ORIGIN],), {})
        elif not any(type(base) is KindOfExceptions for base in bases):
            own["__str__"] = says
        return KindOfExceptions(name, bases, own | {NUMBER: number, LINK: link})

    def __call__(cls, *arguments: Any, **named: Any) -> NoReturn:
        link: Asked = getattr(cls, LINK)
        link.refuse(f"a test makes an exception of the class {cls.__name__}, which is the code's")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        link: Asked = getattr(cls, LINK)
        return link.ask("attribute", (cls, name), {})


def _attribute_of_exception(error: BaseException, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"{type(error).__name__!r} object has no attribute {name!r}")
    return getattr(vars(error)[ORIGIN], name)
