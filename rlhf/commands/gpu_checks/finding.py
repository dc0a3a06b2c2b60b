"""What a check found, and the report of all checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["ok", "FAIL", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check expected and found, in a few words each. `figures` are its measurements, units in their names."""

    good: bool
    expected: str
    found: str
    figures: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResult:
    """One line of the report. A check that was skipped says in `found` what it lacks."""

    name: str
    state: State
    expected: str
    found: str
    seconds: float = 0.0
    figures: Mapping[str, float | str] = field(default_factory=dict)
    log: str = ""

    @property
    def line(self) -> str:
        """The result for a terminal."""
        if self.state == "skip":
            return f"{self.state:<5}{self.name:<34}{self.found}"
        where = f"; see {self.log}" if self.state == "FAIL" and self.log else ""
        return (
            f"{self.state:<5}{self.name:<34}expected {self.expected}; found {self.found}{where} ({self.seconds:.0f} s)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """All results, and the machine that they are of."""

    gpus: int
    nodes: int
    results: tuple[GpuResult, ...]

    @property
    def failed(self) -> int:
        return sum(result.state == "FAIL" for result in self.results)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"failed": self.failed}
