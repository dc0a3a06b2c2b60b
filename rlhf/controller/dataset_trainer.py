"""What a run without episodes learns from: the part in which imitating demonstrations and parting pairs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rlhf.trainer.learner import RemoteLearner


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One update: the learner's metrics, those among them that people watch, and the tokens that were learnt from."""

    metrics: Mapping[str, float]
    watched: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What was measured on one evaluation set of `examples`."""

    examples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What was learnt from so far: `examples`, repeated ones too; of recorded episodes also the fate of every group and
    of every episode."""

    examples: int
    groups: Mapping[str, int] = field(default_factory=dict)
    episodes: Mapping[str, int] = field(default_factory=dict)


class Study(Protocol):
    """Examples in the order of training, and a learner that has started. Each `update` learns from the next
    `trainer.groups_per_update` of them; `evaluate` measures every evaluation set by its name; `resume` goes on behind a
    checkpoint, and comes before any update."""

    @property
    def learner(self) -> RemoteLearner: ...
    @property
    def books(self) -> Books: ...
    async def resume(self, checkpoint: Path) -> None: ...
    async def update(self) -> Lesson: ...
    async def evaluate(self) -> dict[str, HeldOut]: ...
