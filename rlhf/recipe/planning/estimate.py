"""A recipe on a machine: what every process holds, where it does not fit, and what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from rlhf.cluster.resources import Plan
from rlhf.recipe.planning.layout import LearnerLayout, RunLayout
from rlhf.recipe.planning.machines import ALLOCATOR_SHARE, GIB, Card, Machine
from rlhf.recipe.planning.processes import (
    PHASES,
    PhaseName,
    Phases,
    cache_tokens,
    engine_phases,
    held,
    learner_phases,
    peak,
)
from rlhf.recipe.planning.shape import Activations, Line, ModelShape
from rlhf.recipe.planning.times import Times, times_of
from rlhf.recipe.workers import ENGINE

ActivationsOf = Callable[[bool], Activations]
"""The activations of the model, with or without gradient checkpointing."""
LEAST_TOKENS = 256
"""A step of the search for the largest micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What does not fit: where, in which phase, the bytes that it needs and those that there are."""

    where: str
    phase: PhaseName
    needed: int
    available: int

    @property
    def told(self) -> str:
        return (
            f"{self.where} needs {self.needed / GIB:.1f} GiB in the phase {self.phase!r}, and has "
            f"{self.available / GIB:.1f} GiB"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a run needs. `microbatch` is the largest number of tokens of a micro-batch that fits, `context` the longest
    sequence that fits in learner and engine; None where everything has one memory that others use too."""

    shape: ModelShape
    machine: Machine
    run: RunLayout
    plan: Plan | None
    learner: Phases
    engine: Phases | None
    cache_tokens: int
    shortages: tuple[Shortage, ...]
    microbatch: int | None
    context: int | None
    times: Times | None

    @property
    def fits(self) -> bool:
        return not self.shortages


def estimate_run(
    shape: ModelShape, run: RunLayout, machine: Machine, plan: Plan | None, activations_of: ActivationsOf
) -> Estimate:
    """Plan a run. `plan` is where its workers go; without one, one of each is looked at."""
    activations = activations_of(run.learner.checkpointing)
    learner = learner_phases(shape, run.learner, activations, parked=run.colocated)
    card = machine.card if run.engine and run.engine.device == "cuda" else None
    engine = engine_phases(shape, run.engine, card, asleep=run.colocated) if run.engine else None
    cache = cache_tokens(shape, run.engine, engine["generate"]) if run.engine and engine else 0
    microbatch = largest_microbatch(shape, run, machine, activations)
    return Estimate(
        shape=shape,
        machine=machine,
        run=run,
        plan=plan,
        learner=learner,
        engine=engine,
        cache_tokens=cache,
        shortages=tuple(shortages(run, machine, plan, learner, engine)),
        microbatch=microbatch,
        context=None if microbatch is None else _context(shape, run, microbatch, cache),
        times=times_of(shape, run, machine, cache),
    )


def shortages(
    run: RunLayout, machine: Machine, plan: Plan | None, learner: Phases, engine: Phases | None
) -> Iterator[Shortage]:
    """Every place that would overflow, in its worst phase."""
    card = machine.card
    if card is not None:
        yield from _of_cards(run, card, learner, engine)
    counts = _counts(plan) or {"one": Counter(learner=1, engine=1)}
    parallel = run.engine.parallel if run.engine else 1
    worst: Shortage | None = None
    for node, workers in counts.items():
        for phase in PHASES:
            bytes = workers["learner"] * _on_host(learner, phase, card) + (
                workers["engine"] * parallel * _on_host(engine, phase, card) if engine else 0
            )
            if bytes > machine.host_memory and (worst is None or bytes > worst.needed):
                worst = Shortage(
                    where=f"host memory of {node}", phase=phase, needed=bytes, available=machine.host_memory
                )
    if worst is not None:
        yield worst


def largest_microbatch(shape: ModelShape, run: RunLayout, machine: Machine, activations: Activations) -> int | None:
    """The most tokens of a micro-batch that a card holds; None without cards."""
    card = machine.card
    if card is None or run.learner.device == "cpu":
        return None
    phases = learner_phases(shape, run.learner, NO_ACTIVATIONS)
    room = round((1 - ALLOCATOR_SHARE) * card.memory) - held(phases["forward and backward"], "device")
    low, high = 0, 1 << 22
    while high - low > LEAST_TOKENS:
        middle = (low + high) // 2
        low, high = (middle, high) if activations.peak(middle) <= room else (low, middle)
    return low * run.learner.sequence_parallel // LEAST_TOKENS * LEAST_TOKENS


def mends(
    shape: ModelShape, run: RunLayout, machine: Machine, activations_of: ActivationsOf
) -> tuple[Mapping[str, str], bool]:
    """Overrides of the learner that are tried one after the other until its ranks fit on their cards, and whether they
    do in the end."""
    tried: dict[str, str] = {}
    for change, layout in _changes(run.learner, run.prompt + run.reply):
        tried |= change
        phases = learner_phases(shape, layout, activations_of(layout.checkpointing), parked=run.colocated)
        if _ranks_fit(phases, layout, machine):
            return tried, True
    return tried, False


def least_ranks(shape: ModelShape, learner: LearnerLayout, card: Card, activations: Activations) -> int:
    """How many ranks of ZeRO-3 hold this model's state and one micro-batch."""
    ranks = 1
    while ranks < 1 << 16:
        layout = replace(learner, stage=3, ranks=ranks)
        if peak(learner_phases(shape, layout, activations), "device") <= (1 - ALLOCATOR_SHARE) * card.memory:
            return ranks
        ranks += 1 if ranks < 8 else 8
    return ranks


def _ranks_fit(phases: Phases, layout: LearnerLayout, machine: Machine) -> bool:
    """Whether a card holds a rank, and a node the host memory of as many ranks as it has cards."""
    if machine.card is None:
        return True
    on_node = min(layout.ranks, machine.cards) * peak(phases, "host")
    on_card = peak(phases, "device")
    return on_card <= (1 - ALLOCATOR_SHARE) * machine.card.memory and on_node <= machine.host_memory


def _changes(learner: LearnerLayout, sequence: int) -> Iterator[tuple[dict[str, str], LearnerLayout]]:
    if not learner.checkpointing:
        learner = replace(learner, checkpointing=True)
        yield {"model.gradient_checkpointing": "true"}, learner
    if learner.stage < 3:
        learner = replace(learner, stage=3)
        yield {"trainer.deepspeed.zero_stage": "3"}, learner
    while learner.tokens // 2 >= sequence:
        learner = replace(learner, tokens=learner.tokens // 2)
        yield {"trainer.tokens_per_microbatch": str(learner.tokens)}, learner
    if not learner.offload_optimizer:
        learner = replace(learner, offload_optimizer=True)
        yield {"trainer.deepspeed.offload_optimizer": "cpu"}, learner


def _of_cards(run: RunLayout, card: Card, learner: Phases, engine: Phases | None) -> Iterator[Shortage]:
    together = run.colocated or run.shared
    kinds = {"a card with a rank and an engine": (learner, engine)} if together and engine else {
        "a card with a rank": (learner,) if run.learner.device == "cuda" else (),
        "a card with an engine": (engine,) if engine and run.engine and run.engine.device == "cuda" else (),
    }  # fmt: skip
    for where, processes in kinds.items():
        needed = {phase: sum(held(one[phase], "device") for one in processes if one) for phase in PHASES}
        phase = max(PHASES, key=lambda name: needed[name])
        # What vLLM takes is one block that it never outgrows; a rank's allocator leaves holes.
        available = card.memory if where.endswith("with an engine") else round((1 - ALLOCATOR_SHARE) * card.memory)
        if needed[phase] > available:
            yield Shortage(where=where, phase=phase, needed=needed[phase], available=available)


def _on_host(phases: Phases, phase: PhaseName, card: Card | None) -> int:
    return held(phases[phase], "host") + (0 if card else held(phases[phase], "device"))


def _counts(plan: Plan | None) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for placed in plan.placements if plan else ():
        kind = ENGINE if placed.role.startswith(ENGINE) else placed.role  # engines of several sizes are several roles
        counts.setdefault(placed.node, Counter())[kind] += 1
    return counts


def _context(shape: ModelShape, run: RunLayout, microbatch: int, cache: int) -> int:
    limits = [shape.context_tokens, microbatch]
    if run.engine is not None:
        limits.append(cache)
    return min(limits)


_ZERO = Line(base=0.0, each=0.0)
NO_ACTIVATIONS = Activations(saved=_ZERO, decoder_peak=_ZERO, head_peak=_ZERO)
