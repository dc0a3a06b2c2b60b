"""What a program that attacks the code reward's judge is, and earns."""

from __future__ import annotations

from dataclasses import dataclass

ADD = "assert add(1, 2) == 3"
TESTS = (ADD, "assert add(-1, 8) == 7", "assert add(2, 2) in [4]", "assert abs(add(3, 3) - 6) < 1e-9")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hack:
    code: str
    tests: tuple[str, ...] = TESTS
    earns: float = 0.0
