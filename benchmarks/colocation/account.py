"""The plan's account of a colocated run on a CPU: what each process holds in each state, next to what it held. Pure.

A run goes through three states; parking and falling asleep are ways from one to the next, and belong to the fuller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.colocation.memory import Sample, Span, largest, span_at
from rlhf.recipe.planning.processes import MemoryByPhase, Part, PhaseName, bytes_at

State = Literal["generate", "train", "weight sync"]
PLANNED: Mapping[State, tuple[PhaseName, ...]] = {
    "generate": ("generate",),
    "train": ("forward and backward", "optimizer step"),
    "weight sync": ("weight sync",),
}
"""The plan's phases of a state."""
STATES: Mapping[str, State] = {
    "wait": "generate", "evaluate": "generate", "sleep": "generate", "train": "train", "save": "train",
    "weight_sync": "weight sync", "start": "weight sync",
}  # fmt: skip
"""The state of a phase; when a run starts it tries a weight sync."""
BEFORE: Mapping[str, State] = {"weights": "train", "nothing": "weight sync", "everything": "train"}
"""The state in which ranks begin to hold no more than this, or in which they are when they hold everything again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One state: the parts of a rank and of an engine, how many of both there are, and the sample that took most."""

    state: State
    rank: tuple[Part, ...]
    engine: tuple[Part, ...]
    ranks: int
    engines: int
    sample: Sample

    @property
    def planned(self) -> int:
        """Bytes of all processes together."""
        return self.ranks * bytes_at(self.rank, "device") + self.engines * bytes_at(self.engine, "device")

    @property
    def measured(self) -> int:
        """Resident bytes of all processes together; what several share counts in each, as in the plan."""
        return sum(worker.resident for worker in self.sample.workers.values())


def account(
    learner: MemoryByPhase, engine: MemoryByPhase, ranks: int, engines: int, samples: Mapping[State, Sample]
) -> list[Account]:
    """The account of every state that was seen."""
    return [
        Account(
            state=state,
            rank=max((learner[name] for name in PLANNED[state]), key=lambda parts: bytes_at(parts, "device")),
            engine=engine[PLANNED[state][0]],
            ranks=ranks,
            engines=engines,
            sample=samples[state],
        )
        for state in PLANNED
        if state in samples
    ]


def by_state(samples: Sequence[Sample], spans: Sequence[Span]) -> dict[State, Sample]:
    """The sample of each state that took most of the machine."""
    found = largest((state_at(sample.moment, spans), sample) for sample in samples)
    return {state: found[state] for state in PLANNED if state in found}


def state_at(moment: float, spans: Sequence[Span]) -> State | None:
    """The state of a moment."""
    span = span_at(moment, spans)
    if span is None:
        return None
    return BEFORE[span["held"]] if span["name"] == "hold" else STATES[span["name"]]


def told(one: Account, unit: int) -> Iterator[str]:
    """The account of a state as lines, in units of so many bytes."""
    for kind, parts in (("rank", one.rank), ("engine", one.engine)):
        role = "learner" if kind == "rank" else kind
        seen = [worker.resident for name, worker in sorted(one.sample.workers.items()) if name.startswith(role)]
        for part in parts:
            where = " (in files)" if part.place == "files" else ""
            yield f"{one.state:<12}{kind:<8}{part.what + where:<36}{part.bytes / unit:>8,.0f}"
        figures = ", ".join(f"{bytes / unit:,.0f}" for bytes in seen)
        yield f"{one.state:<12}{kind:<8}{'resident':<36}{bytes_at(parts, 'device') / unit:>8,.0f}   measured {figures}"
    both = f"{one.planned / unit:>8,.0f}   measured {one.measured / unit:,.0f}, ratio {one.planned / one.measured:.2f}"
    yield f"{one.state:<12}{'all':<44}{both}"
    yield f"{one.state:<12}{'of which pages that several share, once':<55}{one.sample.total / unit:>19,.0f}"
