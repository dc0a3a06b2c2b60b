"""Estimate the memory of one process in every phase of a run, from a model's shape and a layout.

A rank holds weights, float32 master weights, two moments and gradients in float32 (`rlhf.trainer.rank.zero`), sharded
as its ZeRO stage says (arXiv 1910.02054); an engine's KV cache is what its share of a GPU leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlhf.recipe.planning.layout import EngineLayout, LearnerLayout
from rlhf.recipe.planning.machines import CUDA_CONTEXT, CUDA_GRAPHS, NCCL_BUFFERS, Card
from rlhf.recipe.planning.shape import Activations, ModelShape

Place = Literal["device", "host", "files"]
PhaseName = Literal["load", "generate", "forward and backward", "optimizer step", "weight sync"]
PHASES: tuple[PhaseName, ...] = ("load", "generate", "forward and backward", "optimizer step", "weight sync")
MB = 10**6
LEARNER_PROCESS = 420 * MB
"""Resident memory of a rank on a CPU before its model, measured."""
ENGINE_PROCESS = 650 * MB
"""Resident memory of an engine on a CPU before its model, measured."""
ENGINE_MODULES = 192 * MB
"""Memory of an engine's modules in addition to those of a rank, measured after their imports. Beside engines on a CPU a
rank has them too: all workers are forks of one process that has imported both (`rlhf.cluster.fork_server`)."""
HEAP_SHARE = 0.5
"""Share of a rank's activations on a CPU that glibc's heap keeps between blocks in use, measured (0.4 to 0.6); see
`rlhf.trainer.rank.process_memory`."""
HOST_PROCESS = 3 * 10**9
"""Host memory of a process on a GPU: libraries, CUDA's pinned buffers, and those of vLLM or DeepSpeed."""

BUCKETS = "buckets of weight syncs"
KEPT_ASLEEP = ("libraries", BUCKETS, "CUDA context", "NCCL", "CUDA graphs")
"""Parts that a sleeping engine keeps."""

LIVE_ELEMENTS, BUCKET_ELEMENTS, PREFETCHED_ELEMENTS = 5e8, 5e8, 5e7
"""DeepSpeed's defaults: weights that ZeRO-3 keeps gathered, gradients reduced at once, and weights prefetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Memory of one purpose: in a card's memory, the machine's, or in files."""

    what: str
    bytes: int
    place: Place = "device"


MemoryByPhase = Mapping[PhaseName, tuple[Part, ...]]
"""The parts of a process's memory, by phase."""


def bytes_at(parts: Iterable[Part], place: Place) -> int:
    """Add up the bytes of these parts at one place."""
    return sum(part.bytes for part in parts if part.place == place)


def peak(phases: MemoryByPhase, place: Place) -> int:
    """Return the most bytes of any phase."""
    return max(bytes_at(parts, place) for parts in phases.values())


def learner_phases(
    shape: ModelShape,
    layout: LearnerLayout,
    activations: Activations,
    *,
    checked: int = 0,
    parked: bool = False,
    heap: bool = True,
) -> MemoryByPhase:
    """Estimate the memory of one rank. `parked`: while engines generate, its state waits in host memory (on a CPU in
    files), and during a weight sync everything except its weights. `checked`: the bytes of the forward pass by which
    the first weight sync compares the longest sequence. `heap`: count freed blocks of a CPU's allocator."""
    base, sent = _process(layout), Part(what=BUCKETS, bytes=_buckets(shape, layout))
    ready = [*base, sent] if layout.device == "cpu" else base  # a CPU's buffers are kept from sync to sync
    states = _states(shape.parameters, shape.adapter, layout)
    gradients = _gradients(shape.parameters, shape.adapter, layout)
    passing = [*states, *gradients, *_passing(shape, layout, activations)]
    if layout.device == "cpu" and heap:
        activated = sum(part.bytes for part in passing if part.what == "activations")
        passing.append(Part(what="free blocks of the heap", bytes=round(HEAP_SHARE * activated)))
    stepping = [*states, *gradients, *_stepping(shape, layout)]
    waiting = _away(layout, states, of=states) if parked else states
    sending = _away(layout, states, of=[part for part in states if part.what != "weights"]) if parked else states
    loading = [replace(states[0], place="device"), *_loading(shape, layout)]
    if layout.device == "cuda" and layout.beside_engines:  # the start check copies what it perturbs
        copied = _trained(shape, layout) * layout.width
        part = Part(what="copies for the start check", bytes=copied // _share(layout, layout.stage == 3), place="host")
        sending = [*sending, part]
    phases: MemoryByPhase = {
        "load": (*base, *loading),
        "generate": (*ready, *waiting),
        "forward and backward": (*ready, *passing),
        "optimizer step": (*ready, *stepping),
        "weight sync": (*base, *sending, sent, Part(what="check of the longest sequence", bytes=checked)),
    }
    return {name: _on(layout.device, parts) for name, parts in phases.items()}


def _away(layout: LearnerLayout, states: Iterable[Part], *, of: Sequence[Part]) -> list[Part]:
    """Move the states `of` them to their parking place."""
    elsewhere: Place = "files" if layout.device == "cpu" else "host"
    return [replace(part, place=elsewhere) if part in of else part for part in states]


def least_state(parameters: int, layout: LearnerLayout) -> int:
    """Return the least bytes of a rank on its device: weights, masters, moments and gradients."""
    return bytes_at([*_states(parameters, 0, layout), *_gradients(parameters, 0, layout)], "device")


def engine_phases(shape: ModelShape, layout: EngineLayout, card: Card | None, *, asleep: bool = False) -> MemoryByPhase:
    """Estimate the memory of an engine's process. `asleep`: while ranks train, weights and KV cache are freed."""
    awake = engine_parts(shape, layout, card)
    sleeping = tuple(part for part in awake if part.what in KEPT_ASLEEP)
    resting = sleeping if asleep else awake
    return {
        "load": awake if card else _on("cpu", _cpu_loading(shape, layout)),
        "generate": awake,
        "forward and backward": resting,
        "optimizer step": resting,
        # Its check computes, with the KV cache.
        "weight sync": (*awake, *_receiving(shape, layout)),
    }


def engine_parts(shape: ModelShape, layout: EngineLayout, card: Card | None) -> tuple[Part, ...]:
    """Return the memory of an engine that is ready. On a GPU the KV cache takes the rest of the engine's share."""
    if card is None:
        return _on("cpu", _cpu_engine(shape, layout))
    fixed = _gpu_engine(shape, layout)
    cache = max(round(layout.utilisation * card.memory) - bytes_at(fixed, "device"), 0)
    return (*fixed, Part(what="KV cache", bytes=cache), Part(what="libraries", bytes=HOST_PROCESS, place="host"))


def engine_share(shape: ModelShape, layout: EngineLayout) -> int:
    """Return the bytes of a GPU without which vLLM does not start."""
    return bytes_at(_gpu_engine(shape, layout), "device") + cache_bytes(shape, layout)


def cache_bytes(shape: ModelShape, layout: EngineLayout) -> int:
    """Return the bytes of the KV cache of one sequence as long as the context, without which vLLM does not start."""
    return (layout.context or shape.context_tokens) * shape.cache_elements(layout.parallel) * layout.width


def cache_tokens(shape: ModelShape, layout: EngineLayout, parts: Iterable[Part]) -> int:
    """Count the tokens that the KV cache among these parts holds in all layers."""
    bytes = sum(part.bytes for part in parts if part.what == "KV cache")
    return bytes // (shape.cache_elements(layout.parallel) * layout.width)


def widest(shape: ModelShape) -> int:
    """Estimate the elements that the widest product of a layer gives for a token: the MLP's first."""
    return min(2 * shape.layer_parameters // max(shape.hidden_size, 1) // 3, 8 * shape.hidden_size)


def _gpu_engine(shape: ModelShape, layout: EngineLayout) -> list[Part]:
    # vLLM profiles a step with its largest batch. The peak has the MLP's input and output next to the residual stream,
    # and twice the logits of all sequences in float32.
    batch = layout.batched_tokens * (4 * shape.hidden_size + widest(shape) // layout.parallel)
    logits = 2 * 4 * min(layout.sequences, layout.batched_tokens) * shape.vocabulary // layout.parallel
    return [
        Part(what="CUDA context", bytes=CUDA_CONTEXT),
        *([Part(what="NCCL", bytes=NCCL_BUFFERS // 2)] if layout.parallel > 1 else []),
        Part(what="weights", bytes=shape.parameters * layout.width // layout.parallel),
        Part(what="activations of the largest batch", bytes=batch * layout.width + logits),
        # Model runner 2 keeps a count and a bit of every token of the vocabulary for each sequence.
        Part(what="counts of tokens", bytes=(32 * 4 + 4) * layout.sequences * shape.vocabulary // 32),
        Part(what="CUDA graphs", bytes=CUDA_GRAPHS),
    ]


def _receiving(shape: ModelShape, layout: EngineLayout) -> list[Part]:
    """Return what a weight sync adds on an engine's GPU to vLLM's share: whole tensors of a layer that has not arrived
    completely, with nccl also its communicator and three buffers, of which one may hold the embedding."""
    if layout.backend == "gloo":
        return []
    parts = [Part(what="unfinished layer", bytes=shape.layer_parameters * layout.width)]
    if layout.backend == "nccl":
        bucket = min(layout.bucket_bytes, shape.parameters * layout.width)
        embedding = shape.vocabulary * shape.hidden_size * layout.width
        parts.append(Part(what="NCCL of weight syncs", bytes=NCCL_BUFFERS // 2))
        parts.append(Part(what=BUCKETS, bytes=2 * bucket + max(bucket, embedding)))
    return parts


def _cpu_engine(shape: ModelShape, layout: EngineLayout) -> list[Part]:
    return [
        Part(what="libraries", bytes=ENGINE_PROCESS),
        Part(what="weights", bytes=shape.parameters * layout.width // layout.parallel),
        # A tied head is packed in addition to the embedding, for the CPU's matrix product.
        Part(what="packed head", bytes=shape.head_parameters * layout.width // layout.parallel),
        Part(what="KV cache", bytes=layout.cache_bytes),
        Part(what="logits", bytes=3 * 4 * min(layout.sequences, 64) * shape.vocabulary),
        Part(what=BUCKETS, bytes=min(shape.parameters * layout.width, 3 * layout.bucket_bytes)),
    ]


def _cpu_loading(shape: ModelShape, layout: EngineLayout) -> list[Part]:
    weights = shape.parameters * layout.width
    return [
        Part(what="libraries", bytes=ENGINE_PROCESS),
        Part(what="weights", bytes=weights // layout.parallel),
        Part(what="pages of the weights' files", bytes=weights),
    ]


def _process(layout: LearnerLayout) -> list[Part]:
    if layout.device == "cpu":
        engines = [Part(what="modules of engines", bytes=ENGINE_MODULES)] if layout.beside_engines else []
        return [Part(what="libraries", bytes=LEARNER_PROCESS), *engines]
    nccl = [Part(what="NCCL", bytes=NCCL_BUFFERS)] if layout.ranks > 1 else []
    return [
        Part(what="CUDA context", bytes=CUDA_CONTEXT), *nccl,
        Part(what="libraries", bytes=HOST_PROCESS, place="host"),
    ]  # fmt: skip


def _trained(shape: ModelShape, layout: LearnerLayout) -> int:
    """Count the elements with gradients: all weights, or the adapters."""
    return shape.adapter * layout.lora if layout.lora else shape.parameters


def _share(layout: LearnerLayout, sharded: bool) -> int:
    return layout.ranks if sharded else 1


def _buckets(shape: ModelShape, layout: LearnerLayout) -> int:
    """Return the bytes of the learner's two buffers; a tensor that ZeRO-3 gathers for them may be larger."""
    if not layout.beside_engines:
        return 0
    gathered = shape.largest_parameter * layout.width if layout.stage == 3 else 0
    return 2 * max(min(layout.bucket_bytes, shape.parameters * layout.width), gathered)


def _states(parameters: int, adapter: int, layout: LearnerLayout) -> list[Part]:
    """Return the persistent state of policy and critic, the policy's weights first."""
    trained = adapter * layout.lora if layout.lora else parameters
    shards, whole = _share(layout, layout.stage > 0), _share(layout, layout.stage == 3)
    optimizer: Place = "host" if layout.offload_optimizer else "device"
    weights = (parameters + adapter * layout.lora) * layout.width // whole
    # ZeRO-3 in float32 updates its shards in place; the other stages keep a copy of their part.
    masters = 0 if layout.stage == 0 or (layout.stage == 3 and layout.width == 4) else 4 * trained // shards
    policy = [
        Part(what="weights", bytes=weights, place="host" if layout.offload_parameters else "device"),
        Part(what="float32 masters", bytes=masters, place=optimizer),
        Part(what="moments", bytes=8 * trained // shards, place=optimizer),
    ]
    if layout.offload_optimizer:
        policy.append(Part(what="pinned gradients", bytes=4 * trained // shards, place="host"))
    critic = [replace(part, what=f"critic's {part.what}") for part in policy]
    reference = Part(what="reference", bytes=parameters * layout.width // whole)
    return [
        *policy,
        *(critic if layout.critic else []),
        *([reference] if layout.reference else []),
        *([Part(what="average", bytes=4 * trained // whole)] if layout.average else []),
    ]


def _gradients(parameters: int, adapter: int, layout: LearnerLayout) -> list[Part]:
    """Return the sum of gradients in float32: complete below stage 2, else a shard."""
    if layout.offload_optimizer and layout.stage == 3:
        return []
    trained = adapter * layout.lora if layout.lora else parameters
    return [Part(what="gradients", bytes=4 * (trained // _share(layout, layout.stage >= 2)))]


def _bucket(shape: ModelShape, layout: LearnerLayout) -> int:
    """Return the number of elements of the buffer in which gradients are reduced."""
    return int(min(layout.zero.get("reduce_bucket_size", BUCKET_ELEMENTS), _trained(shape, layout)))


def _passing(shape: ModelShape, layout: LearnerLayout, activations: Activations) -> list[Part]:
    """Return the memory that a forward and backward pass adds."""
    tokens = layout.tokens
    parts = [Part(what="activations", bytes=activations.peak(tokens))]
    if layout.stage >= 2:
        added = _reducing(shape, layout, activations.saved.at(tokens), activations.peak(tokens))
        parts.append(Part(what="buckets of gradients", bytes=added))
    if layout.stage == 3:
        parts.append(Part(what="gathered layers", bytes=layout.width * gathered_elements(shape, layout)))
    return parts


def _reducing(shape: ModelShape, layout: LearnerLayout, saved: int, peak: int) -> int:
    """Return the bytes that reductions in the backward pass add to the peak of its activations: a bucket of gradients
    in float32, later its copies. A tensor above the bucket's size is reduced alone: an untied head before activations
    are freed."""
    largest, limit = shape.largest_parameter, _bucket(shape, layout)
    alone = limit < largest <= _trained(shape, layout)
    copies = (4 if layout.stage == 2 else 4 + 4 / layout.ranks) * (largest if alone else limit)
    # On a CPU, memory that is not written takes no room; ZeRO-3 keeps its bucket between updates.
    first = 4 * limit if layout.device == "cuda" or layout.stage == 3 else 0
    left = 0 if alone and shape.tied else saved * (1 - limit / max(_trained(shape, layout), 1))
    later = left + 4 * limit + copies + (layout.width * largest if alone else 0)
    return round(max(first, later - peak))


def gathered_elements(shape: ModelShape, layout: LearnerLayout) -> int:
    """Count the elements that ZeRO-3 gathers at most: those used again soon, prefetched ones, the largest tensor."""
    prefetched = layout.zero.get("stage3_prefetch_bucket_size", PREFETCHED_ELEMENTS)
    return int(min(shape.parameters, LIVE_ELEMENTS + prefetched + shape.largest_parameter))


def _stepping(shape: ModelShape, layout: LearnerLayout) -> list[Part]:
    """Return the memory that late reductions and the optimizer step add, after activations are freed."""
    trained = _trained(shape, layout)
    if layout.stage == 0:
        return [Part(what="gradients on their way", bytes=4 * min(trained, 500_000_000))] if layout.ranks > 1 else []
    flat, bucket = 4 * trained // layout.ranks, 4 * _bucket(shape, layout)
    if layout.stage == 1:
        return [Part(what="flat gradients", bytes=max(flat, 2 * bucket))]
    if layout.stage == 2:
        return [Part(what="flat gradients", bytes=flat if layout.width == 4 else 0)]
    group = 4 * int(min(trained, 2 * LIVE_ELEMENTS)) // layout.ranks  # the sub-group that is stepped at once
    return [
        Part(what="buckets of gradients", bytes=bucket),
        Part(what="flat gradients", bytes=0 if layout.offload_optimizer else group),
    ]


def _loading(shape: ModelShape, layout: LearnerLayout) -> list[Part]:
    if layout.stage == 3:
        return [Part(what="one layer on its way", bytes=shape.layer_parameters * layout.width)]
    if layout.device == "cpu":
        return []  # until the first step, the weights are the file's pages
    return [Part(what="weights on their way", bytes=shape.parameters * layout.width, place="host")]


def _on(device: str, parts: Iterable[Part]) -> tuple[Part, ...]:
    """Drop empty parts; a CPU has one memory."""
    if device != "cpu":
        return tuple(part for part in parts if part.bytes)
    return tuple(replace(part, place="files" if part.place == "files" else "device") for part in parts if part.bytes)
