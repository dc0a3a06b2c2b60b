"""Classes of exceptions that the process of the tests knows by number: its own, and those that stand for the code's."""

from __future__ import annotations

from typing import Any

from rlhf.reward.code.checking.stand_ins import Asked, KindOfExceptions
from rlhf.reward.code.checking.values import NoValue


class Classes:
    """Of each class of the tests the number, of which the code's process makes one, and of each number of the code's
    the class."""

    def __init__(self, link: Asked) -> None:
        self._link = link
        self._of_tests: dict[type, int] = {}
        self._of_code: dict[tuple[Any, str, tuple[Any, ...]], Any] = {}

    def number(self, kind: type) -> int:
        """The number of a class of the tests."""
        return self._of_tests.setdefault(kind, len(self._of_tests))

    def numbered(self, number: Any, name: str, bases: tuple[Any, ...], ways: tuple[str, ...]) -> Any:
        """The class of the code's with that number, or, where it is in a list, of the tests'. Raises `NoValue`."""
        if type(number) is list:
            return self._of_the_tests(*number)
        known = self._of_code.get((number, name, bases))
        if known is None:
            known = self._of_code[number, name, bases] = KindOfExceptions.made(self._link, number, name, bases, ways)
        return known

    def _of_the_tests(self, number: Any = None, *more: Any) -> type:
        if type(number) is not int or not 0 <= number < len(self._of_tests):
            raise NoValue("what arrived is no class of the tests")
        return [*self._of_tests][number]
