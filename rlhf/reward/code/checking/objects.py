"""What tests have of the code: functions, classes and objects that stay in the code's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

COMPARED = "eq ne lt le gt ge bool hash"
"""Of an object of the code these would be the code's own word on whether a test passes."""
COMPUTED = """
    add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or neg pos abs invert complex int float
    radd rsub rmul rmatmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand rxor ror round trunc floor ceil
    iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ixor ior index
"""
OTHERS = """
    bytes fspath enter exit aenter aexit await delattr dir copy deepcopy reduce reduce_ex getstate
    subclasscheck mro_entries
"""
REFUSED = {"compares": COMPARED, "computes with": COMPUTED, "copies, changes, enters or derives from": OTHERS}
OF_THE_LINK = ("_rlhf_link", "_rlhf_number", "_rlhf_kind")
ORDINARY = """
    name qualname doc module annotations dict wrapped class
    init call iter next len getitem setitem contains str repr enter exit
"""
DESCRIBED = frozenset(f"__{name}__" for name in ORDINARY.split())
"""What is asked of the code by such a name. Any other tells Python and its libraries how to take an object, down to the
address of its memory: the test is refused."""
OF_NOBODY = ("__isabstractmethod__", "__type_params__")
"""What Python asks decorated functions for, and no object needs."""


class Asked(Protocol):
    """What asks the code."""

    def ask(self, operation: str, *arguments: Any, named: dict[str, Any] | None = None) -> Any: ...
    def refuse(self, what: str) -> NoReturn: ...


class Remote:
    """An object of the code: called, asked for an attribute, an item, its length, its items one by one, what it holds
    and what it says, it gives values, or other objects. Whatever else a test does with it, its own process would have
    to answer for it: the test is refused."""

    __slots__ = ("__weakref__", *OF_THE_LINK)
    _rlhf_link: Asked
    _rlhf_number: int
    _rlhf_kind: Any

    def __init__(self, link: Asked, number: int) -> None:
        object.__setattr__(self, "_rlhf_link", link)
        object.__setattr__(self, "_rlhf_number", number)
        object.__setattr__(self, "_rlhf_kind", None)

    def __getattribute__(self, name: str) -> Any:
        if name in OF_THE_LINK:
            return object.__getattribute__(self, name)
        if name in OF_NOBODY:
            raise AttributeError(name)
        if name.startswith("__") and name not in DESCRIBED:
            self._rlhf_link.refuse(f"a test asks for {name} of an object of the code")
        return self._rlhf_link.ask("attribute", self, name)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self._rlhf_link.ask("call", self, *arguments, named=named)

    def __instancecheck__(self, value: Any) -> Any:
        return self._rlhf_link.ask("instance", value, self)


def _asks(operation: str) -> Callable[..., Any]:
    def asks(self: Remote, *arguments: Any) -> Any:
        return self._rlhf_link.ask(operation, self, *arguments)

    return asks


def _refuses(name: str, doing: str) -> Callable[..., NoReturn]:
    def refuses(self: Remote, *arguments: Any) -> NoReturn:
        self._rlhf_link.refuse(f"a test {doing} an object of the code (__{name}__)")

    return refuses


ASKED = "len iter reversed next getitem setitem delitem contains setattr str repr format"
"""What is asked of the code. Python itself sees to it that a length is a number, and a text a text."""
for name in ASKED.split():
    setattr(Remote, f"__{name}__", _asks(name))
for doing, names in REFUSED.items():
    for name in names.split():
        setattr(Remote, f"__{name}__", _refuses(name, doing))
