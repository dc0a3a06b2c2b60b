"""What a simulated run plays and how long each part takes: plain numbers, from a plan or from a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeWork:
    """An episode: the tokens of its prompt and those that the policy samples, in `turns` equal parts with the
    environment's seconds between them."""

    prompt_tokens: int
    tokens: int
    turns: int = 1
    environment_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """A group, and the seconds that its scores take when all episodes have ended. A `filtered` one is not trained."""

    episodes: tuple[EpisodeWork, ...]
    scoring_seconds: float = 0.0
    filtered: bool = False

    @property
    def trained_tokens(self) -> int:
        """The tokens that the learner computes: a prompt that all episodes share once."""
        prompts = [episode.prompt_tokens for episode in self.episodes]
        return max(prompts, default=0) + sum(episode.tokens for episode in self.episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """An engine's seconds a step: `fixed`, those of each sequence that runs, and of each token of a prompt. A step
    reads at most `chunk` tokens of prompts."""

    fixed: float
    sequence: float
    prompt_token: float
    chunk: int

    def of(self, running: int) -> float:
        """Return the seconds of a step with so many sequences."""
        return self.fixed + self.sequence * running


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """The seconds of each part of a run. `train_token` is for one token of a batch and all ranks, `rest` for what the
    controller does between two updates, `restart` for an engine that was lost."""

    step: StepSeconds
    train_token: float
    weight_sync: float
    rest: float
    restart: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The groups of a run, which are played again and again in their order, and its durations."""

    groups: Sequence[GroupWork]
    durations: Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings of a simulated run. An engine runs `places` sequences at once. Engines and ranks share `cores`,
    which are infinite where each has its own device, and take their threads of them."""

    groups_per_update: int
    max_staleness: int
    refill_groups: int
    concurrent_groups: int
    engines: int
    places: int
    cores: float
    engine_threads: float
    learner_threads: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What slows a run down: a share of episodes that take `straggler_factor` times as long, outside of the engines;
    and engines that fail so many times an hour each."""

    straggler_share: float = 0.0
    straggler_factor: float = 1.0
    failures_per_hour: float = 0.0
    seed: int = 0
