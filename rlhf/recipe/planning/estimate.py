"""Estimate a recipe on a machine: the memory of every process, and what is too small."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rlhf.cluster.roles import Resources, Role, check_resources
from rlhf.errors import PlacementError
from rlhf.recipe.planning.layout import EngineLayout, RunLayout
from rlhf.recipe.planning.machines import ALLOCATOR_SHARE, GIB, Card, Machine
from rlhf.recipe.planning.processes import (
    PHASES,
    MemoryByPhase,
    PhaseName,
    bytes_at,
    cache_bytes,
    cache_tokens,
    engine_phases,
    engine_share,
    learner_phases,
    widest,
)
from rlhf.recipe.planning.shape import Activations, LinearBytes, ModelShape

ActivationsOf = Callable[[int], Activations]
"""The activations of the model when every n-th layer is recomputed; 0 recomputes no layer."""
LEAST_TOKENS = 256
"""A step of the search for the largest micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A place that is too small in a phase, with the bytes needed and available."""

    where: str
    phase: PhaseName
    needed: int
    available: int

    @property
    def described(self) -> str:
        needed, available = self.needed / GIB, self.available / GIB
        return f"{self.where} needs {needed:.1f} GiB in the phase {self.phase!r}, and has {available:.1f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The needs of a run. `placement` names missing GPUs or cores. `microbatch` is the largest number of tokens of a
    micro-batch that fits, `context` the longest sequence that fits in learner and engine; None on CPUs, whose
    memory is shared."""

    shape: ModelShape
    machine: Machine
    run: RunLayout
    roles: tuple[Role, ...]
    learner: MemoryByPhase
    engines: tuple[MemoryByPhase, ...]
    cache_tokens: tuple[int, ...]
    placement: str
    shortages: tuple[Shortage, ...]
    microbatch: int | None
    context: int | None

    @property
    def fits(self) -> bool:
        return not self.shortages and not self.placement

    @property
    def lacking(self) -> int:
        """The bytes that all shortages lack."""
        return sum(short.needed - short.available for short in self.shortages)


def estimate_run(
    shape: ModelShape,
    run: RunLayout,
    machine: Machine,
    roles: tuple[Role, ...],
    activations_of: ActivationsOf,
) -> Estimate:
    """Estimate a run of these workers."""
    activations = activations_of(run.learner.checkpointing)
    # The first weight sync compares engines and learner by a forward pass over the longest sequence that a reply can
    # reach: hidden states, the three products of an MLP, and one of them in float32 (`rlhf.models.rounding`).
    product = widest(shape) // 2
    each = run.learner.width * (4 * shape.hidden_size + 3 * product) + 4 * product
    checked = run.longest * each if run.learner.device == "cuda" and run.engines else 0
    learner = learner_phases(shape, run.learner, activations, checked=checked, parked=run.colocated)
    card = machine.card if any(engine.device == "cuda" for engine in run.engines) else None
    engines = tuple(engine_phases(shape, layout, card, asleep=run.colocated) for layout in run.engines)
    caches = [
        cache_tokens(shape, layout, parts["generate"]) for layout, parts in zip(run.engines, engines, strict=True)
    ]
    microbatch = largest_microbatch(shape, run, machine, activations)
    context = microbatch and min(shape.context_tokens, microbatch * run.learner.sequence_parallel, *caches)
    return Estimate(
        shape=shape, machine=machine, run=run, roles=roles, learner=learner, engines=engines,
        cache_tokens=tuple(caches), microbatch=microbatch, context=context,
        placement=placement_problem(roles, machine),
        shortages=tuple(shortages(shape, run, machine, roles, learner, engines)),
    )  # fmt: skip


def shortages(
    shape: ModelShape,
    run: RunLayout,
    machine: Machine,
    roles: Sequence[Role],
    learner: MemoryByPhase,
    engines: Sequence[MemoryByPhase],
) -> Iterator[Shortage]:
    """Iterate over every place that would overflow, in its worst phase."""
    card = machine.card
    if card is not None:
        for layout, engine in zip(run.engines, engines, strict=True):
            yield from _engine_card_shortages(shape, run, layout, card, learner, engine)
        if not (run.engines and (run.colocated or run.shared)) and run.learner.device == "cuda":
            yield from _overflowing("a card with a rank", round((1 - ALLOCATOR_SHARE) * card.free), learner)
    for layout in run.engines:
        needed, tokens = cache_bytes(shape, layout), layout.context or shape.context_tokens
        if layout.device == "cpu" and needed > layout.cache_bytes:
            name = f"an engine's KV cache (rollout.kv_cache_megabytes) with one sequence of its {tokens:,} tokens"
            yield Shortage(where=name, phase="generate", needed=needed, available=layout.cache_bytes)
    workers = {role.name: -(-role.count // machine.nodes) for role in roles}  # on a node, if they are spread evenly
    worst: Shortage | None = None
    for phase in PHASES:
        bytes = workers["learner"] * _on_host(learner, phase, card) + sum(
            workers[layout.role] * layout.parallel * _on_host(engine, phase, card)
            for layout, engine in zip(run.engines, engines, strict=True)
        )
        if bytes > machine.host_memory and (worst is None or bytes > worst.needed):
            worst = Shortage(where="host memory of a node", phase=phase, needed=bytes, available=machine.host_memory)
    if worst is not None:
        yield worst


def largest_microbatch(shape: ModelShape, run: RunLayout, machine: Machine, activations: Activations) -> int | None:
    """Find the largest number of tokens of a rank's micro-batch that a card holds; None without cards."""
    card = machine.card
    if card is None or run.learner.device == "cpu":
        return None
    phases = learner_phases(shape, run.learner, NO_ACTIVATIONS)
    room = round((1 - ALLOCATOR_SHARE) * card.free) - bytes_at(phases["forward and backward"], "device")
    low, high = 0, 1 << 22
    while high - low > LEAST_TOKENS:
        middle = (low + high) // 2
        low, high = (middle, high) if activations.peak(middle) <= room else (low, middle)
    return low // LEAST_TOKENS * LEAST_TOKENS


def placement_problem(roles: Sequence[Role], machine: Machine) -> str:
    """Return what the workers ask for and the machine lacks, GPUs first; empty where it has everything."""
    names = [f"node-{index}" for index in range(1, machine.nodes + 1)] if machine.nodes > 1 else ["this node"]
    try:
        check_resources(roles, [Resources(node=name, cpus=machine.cores, gpus=machine.cards) for name in names])
    except PlacementError as error:
        return str(error)
    return ""


def _engine_card_shortages(
    shape: ModelShape, run: RunLayout, layout: EngineLayout, card: Card, learner: MemoryByPhase, engine: MemoryByPhase
) -> Iterator[Shortage]:
    """Check a card with a process of these engines, and with a rank where they share cards."""
    size = f" of {layout.parallel}" if len(run.engines) > 1 else ""
    share, needed = round(layout.utilisation * card.memory), engine_share(shape, layout)
    if layout.device == "cuda" and needed > share:
        name = f"an engine{size} with one sequence of its {layout.context or shape.context_tokens:,} tokens"
        yield Shortage(where=name, phase="generate", needed=needed, available=share)
    if run.colocated or run.shared:
        available = round((1 - ALLOCATOR_SHARE) * card.free)
        yield from _overflowing(f"a card with a rank and an engine{size}", available, learner, engine)
    elif layout.device == "cuda":  # vLLM reserves its share as one block; a rank's allocator leaves holes
        yield from _overflowing(f"a card with an engine{size}", card.free, engine)


def _overflowing(where: str, available: int, *processes: MemoryByPhase) -> Iterator[Shortage]:
    needed = {phase: sum(bytes_at(process[phase], "device") for process in processes) for phase in PHASES}
    phase = max(PHASES, key=lambda name: needed[name])
    if needed[phase] > available:
        yield Shortage(where=where, phase=phase, needed=needed[phase], available=available)


def _on_host(phases: MemoryByPhase, phase: PhaseName, card: Card | None) -> int:
    return bytes_at(phases[phase], "host") + (0 if card else bytes_at(phases[phase], "device"))


_ZERO = LinearBytes(base=0.0, each=0.0)
NO_ACTIVATIONS = Activations(saved=_ZERO, decoder_peak=_ZERO, head_peak=_ZERO)
