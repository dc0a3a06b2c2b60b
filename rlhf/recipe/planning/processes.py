"""Memory of one process in every phase of a run: pure functions of a model's shape and a layout.

What DeepSpeed allocates is read from its `runtime/zero/stage_1_and_2.py` and `stage3.py` (0.19), and what vLLM does
from its `v1/worker/gpu_worker.py` (0.32). All gradients are added up in float32 (`rlhf.trainer.rank.zero`).
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
"""Resident memory of a rank on a CPU before its model: torch, transformers and DeepSpeed, measured."""
ENGINE_PROCESS = 650 * MB
"""The same of an engine on a CPU: torch, transformers and vLLM, measured."""
ENGINE_MODULES = 192 * MB
"""What the modules of an engine add to those of a rank, measured after their imports. A rank on a CPU has them where
there are engines: all workers are forks of one process that has imported both (`rlhf.cluster.forking`)."""
HEAP_SHARE = 0.5
"""Of a rank's activations on a CPU: what glibc's heap keeps between blocks in use, measured (0.4 to 0.6). Ranks keep it
on purpose (`rlhf.trainer.rank.process_memory`)."""
HOST_PROCESS = 3 * 10**9
"""Host memory of a process that works on a GPU: libraries, CUDA's pinned buffers, vLLM's or DeepSpeed's own."""

BUCKETS = "buckets of weight syncs"
KEPT_ASLEEP = ("libraries", BUCKETS, "CUDA context", "NCCL", "CUDA graphs")
"""What a sleeping engine does not give back."""

DEFAULTS = {
    "stage3_prefetch_bucket_size": 5e7,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "sub_group_size": 1e9,
    "reduce_bucket_size": 5e8,
}
"""DeepSpeed's own defaults, in elements (`runtime/zero/config.py`); a test holds them against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Memory of one purpose: `place` is a card's memory, the machine's, or none of it: files."""

    what: str
    bytes: int
    place: Place = "device"


Phases = Mapping[PhaseName, tuple[Part, ...]]
"""What a process holds, by phase."""


def held(parts: Iterable[Part], place: Place) -> int:
    """Bytes of these parts at one place."""
    return sum(part.bytes for part in parts if part.place == place)


def peak(phases: Phases, place: Place) -> int:
    """The most bytes of any phase."""
    return max(held(parts, place) for parts in phases.values())


def learner_phases(
    shape: ModelShape, layout: LearnerLayout, activations: Activations, *, parked: bool = False, heap: bool = True
) -> Phases:
    """The memory of one rank. `parked`: its state waits in host memory, of a run on a CPU in files, while engines
    generate, and all but its weights during a weight sync. On a CPU everything is in one memory, and `heap` says
    whether the allocator keeps what is freed."""
    base, sent = _process(layout), Part(what=BUCKETS, bytes=_buckets(shape, layout))
    ready = [*base, sent] if layout.device == "cpu" else base  # a CPU's buffers are kept from sync to sync
    states = [Part(what=what, bytes=bytes, place=place) for what, bytes, place in _states(shape, layout)]
    passing = [*states, *_accumulated(shape, layout), *_passing(shape, layout, activations)]
    if layout.device == "cpu" and heap:
        activated = sum(part.bytes for part in passing if part.what == "activations")
        passing.append(Part(what="free blocks of the heap", bytes=round(HEAP_SHARE * activated)))
    stepping = [*states, *_accumulated(shape, layout), *_stepping(shape, layout)]
    waiting = _away(layout, states, of=states) if parked else states
    sending = _away(layout, states, of=[one for one in states if one.what != "weights"]) if parked else states
    loading = [Part(what="weights", bytes=_weights(shape, layout)), *_loading(shape, layout)]
    phases: Phases = {
        "load": (*base, *loading),
        "generate": (*ready, *waiting),
        "forward and backward": (*ready, *passing),
        "optimizer step": (*ready, *stepping),
        "weight sync": (*base, *sending, sent),
    }
    return {name: _on(layout.device, parts) for name, parts in phases.items()}


def _away(layout: LearnerLayout, states: Iterable[Part], *, of: Sequence[Part]) -> list[Part]:
    """The states, those `of` them that are parked where a rank parks them."""
    elsewhere: Place = "files" if layout.device == "cpu" else "host"
    return [replace(part, place=elsewhere) if part in of else part for part in states]


def least_state(shape: ModelShape, layout: LearnerLayout) -> int:
    """Bytes that a rank cannot do without: its weights, masters, moments and gradients, on its device."""
    states = [Part(what=what, bytes=bytes, place=place) for what, bytes, place in _states(shape, layout)]
    return held([*states, *_accumulated(shape, layout)], "device")


def bare_shape(parameters: int) -> ModelShape:
    """A model of which only the number of weights is known."""
    return ModelShape(
        name="", architecture="", parameters=parameters, multiplied=parameters, layers=1, layer_parameters=0,
        largest_parameter=0, head_parameters=0, adapter=0, tied=True, hidden_size=1, vocabulary=0, heads=1, kv_heads=1,
        head_size=1, windows=(), context_tokens=0,
    )  # fmt: skip


def engine_phases(shape: ModelShape, layout: EngineLayout, card: Card | None, *, asleep: bool = False) -> Phases:
    """The memory of one of an engine's processes. `asleep`: while ranks train, weights and KV cache are freed."""
    awake = engine_parts(shape, layout, card)
    sleeping = tuple(part for part in awake if part.what in KEPT_ASLEEP)
    resting = sleeping if asleep else awake
    return {
        "load": awake if card else _on("cpu", _cpu_loading(shape, layout)),
        "generate": awake,
        "forward and backward": resting,
        "optimizer step": resting,
        "weight sync": awake,  # its check computes, with the KV cache
    }


def engine_parts(shape: ModelShape, layout: EngineLayout, card: Card | None) -> tuple[Part, ...]:
    """What an engine's process holds when it is ready. On a GPU the KV cache is what its share leaves."""
    if card is None:
        return _on("cpu", _cpu_engine(shape, layout))
    fixed = _gpu_engine(shape, layout)
    cache = max(round(layout.utilisation * card.memory) - held(fixed, "device"), 0)
    graphs = Part(what="CUDA graphs", bytes=CUDA_GRAPHS)
    host = Part(what="libraries", bytes=HOST_PROCESS, place="host")
    return (*fixed, Part(what="KV cache", bytes=cache), graphs, host)


def cache_tokens(shape: ModelShape, layout: EngineLayout, parts: Iterable[Part]) -> int:
    """How many tokens the KV cache of these parts holds, if all layers see them."""
    bytes = sum(part.bytes for part in parts if part.what == "KV cache")
    return bytes // (shape.cache_elements(layout.parallel) * layout.width)


def _gpu_engine(shape: ModelShape, layout: EngineLayout) -> list[Part]:
    # vLLM profiles a step with as many tokens as it will ever batch: the widest thing then alive is the MLP's input and
    # output beside the residual stream, and the logits of all sequences in float32, twice.
    width = 2 * shape.layer_parameters // max(shape.hidden_size, 1) // 3
    batch = layout.batched_tokens * (4 * shape.hidden_size + min(width, 8 * shape.hidden_size) // layout.parallel)
    logits = 2 * 4 * min(layout.sequences, layout.batched_tokens) * shape.vocabulary // layout.parallel
    return [
        Part(what="CUDA context", bytes=CUDA_CONTEXT),
        *([Part(what="NCCL", bytes=NCCL_BUFFERS // 2)] if layout.parallel > 1 else []),
        Part(what="weights", bytes=shape.parameters * layout.width // layout.parallel),
        Part(what="activations of the largest batch", bytes=batch * layout.width + logits),
    ]


def _cpu_engine(shape: ModelShape, layout: EngineLayout) -> list[Part]:
    return [
        Part(what="libraries", bytes=ENGINE_PROCESS),
        Part(what="weights", bytes=shape.parameters * layout.width // layout.parallel),
        # A tied head is packed beside the embedding for the CPU's matrix product.
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
    """Elements with gradients: all weights, or the adapters."""
    return shape.adapter * layout.lora if layout.lora else shape.parameters


def _share(layout: LearnerLayout, sharded: bool) -> int:
    return layout.ranks if sharded else 1


def _weights(shape: ModelShape, layout: LearnerLayout) -> int:
    elements = shape.parameters + (shape.adapter * layout.lora if layout.lora else 0)
    return elements * layout.width // _share(layout, layout.stage == 3)


def _buckets(shape: ModelShape, layout: LearnerLayout) -> int:
    """The two buffers of the learner's end; what is gathered for them may be larger."""
    if not layout.beside_engines:
        return 0
    bucket = min(layout.bucket_bytes, shape.parameters * layout.width)
    return 2 * max(bucket, _largest(shape, layout))


def _largest(shape: ModelShape, layout: LearnerLayout) -> int:
    return shape.largest_parameter * layout.width if layout.stage == 3 else 0


def _states(shape: ModelShape, layout: LearnerLayout) -> list[tuple[str, int, Place]]:
    """What every trained model keeps from update to update: the policy, and the critic like it."""
    shards, trained = _share(layout, layout.stage > 0), _trained(shape, layout)
    optimizer: Place = "host" if layout.offload_optimizer else "device"
    weights: Place = "host" if layout.offload_parameters else "device"
    # ZeRO-3 in float32 updates its shards in place; the other stages keep a copy of their part.
    masters = 0 if layout.stage == 0 or (layout.stage == 3 and layout.width == 4) else 4 * trained // shards
    one: list[tuple[str, int, Place]] = [
        ("weights", _weights(shape, layout), weights),
        ("float32 masters", masters, optimizer),
        ("moments", 8 * trained // shards, optimizer),
    ]
    if layout.offload_optimizer:
        one.append(("pinned gradients", 4 * trained // shards, "host"))
    critic: list[tuple[str, int, Place]] = [(f"critic's {what}", bytes, place) for what, bytes, place in one]
    reference: tuple[str, int, Place] = (
        "reference",
        shape.parameters * layout.width // _share(layout, layout.stage == 3),
        "device",
    )
    average: tuple[str, int, Place] = ("average", 4 * trained // _share(layout, layout.stage == 3), "device")
    return [
        *one,
        *(critic if layout.critic else []),
        *([reference] if layout.reference else []),
        *([average] if layout.average else []),
    ]


def _accumulated(shape: ModelShape, layout: LearnerLayout) -> list[Part]:
    """The sum of gradients in float32: whole below stage 2, else a shard."""
    if layout.offload_optimizer and layout.stage == 3:
        return []
    elements = _trained(shape, layout) // _share(layout, layout.stage >= 2)
    return [Part(what="gradients", bytes=4 * elements)]


def _bucket(shape: ModelShape, layout: LearnerLayout) -> int:
    """Elements of the buffer in which gradients are reduced."""
    return int(min(_setting(layout, "reduce_bucket_size"), _trained(shape, layout)))


def _setting(layout: LearnerLayout, name: str) -> float:
    return float(layout.zero.get(name, DEFAULTS[name]))


def _passing(shape: ModelShape, layout: LearnerLayout, activations: Activations) -> list[Part]:
    """What a forward and backward pass adds."""
    tokens = -(-layout.tokens // layout.sequence_parallel)
    parts = [Part(what="activations", bytes=activations.peak(tokens))]
    if layout.stage >= 2:
        added = _reducing(shape, layout, activations.saved.at(tokens), activations.peak(tokens))
        parts.append(Part(what="buckets of gradients", bytes=added))
    if layout.stage == 3:
        parts.append(Part(what="gathered layers", bytes=layout.width * gathered_elements(shape, layout)))
    return parts


def _reducing(shape: ModelShape, layout: LearnerLayout, saved: int, peak: int) -> int:
    """What reductions in the backward pass add to the peak of its activations.

    The first happens when a bucket is full, when the layers whose gradients fill it have let go of their activations. A
    tensor above the bucket's size is reduced alone: an untied head, at the beginning, an embedding at the end.
    """
    trained, limit = _trained(shape, layout), _bucket(shape, layout)
    bucket = 4 * limit
    # On a CPU memory that nobody has written is not there yet; ZeRO-3 keeps its bucket from update to update.
    moments = [peak + (bucket if layout.device == "cuda" or layout.stage == 3 else 0)]
    moments.append(round(saved * (1 - limit / max(trained, 1))) + bucket + _copied(layout, limit, alone=False))
    if limit < shape.largest_parameter <= trained:
        left, largest = 0 if shape.tied else saved, shape.largest_parameter
        moments.append(left + layout.width * largest + bucket + _copied(layout, largest, alone=True))
    return max(moments) - peak


def _copied(layout: LearnerLayout, elements: int, *, alone: bool) -> int:
    """Bytes that a reduction of so many gradients copies: into one tensor, in float32, and its result."""
    if layout.stage == 2:
        return 4 * elements
    converted = 4 * elements if alone and layout.width == 2 else 0
    return converted + 4 * elements + 4 * elements // layout.ranks


def gathered_elements(shape: ModelShape, layout: LearnerLayout) -> int:
    """Elements that ZeRO-3 holds gathered at its worst: it keeps what is used again within its reuse distance, in which
    weights of the last layers count for the forward and for the backward pass, and prefetches a bucket."""
    kept = min(_setting(layout, "stage3_max_reuse_distance") / 2, _setting(layout, "stage3_max_live_parameters"))
    prefetched = _setting(layout, "stage3_prefetch_bucket_size")
    return int(min(shape.parameters, kept + prefetched + shape.largest_parameter))


def _stepping(shape: ModelShape, layout: LearnerLayout) -> list[Part]:
    """What reductions after the backward pass and the optimizer step add, when activations are gone."""
    trained, shards = _trained(shape, layout), _share(layout, layout.stage > 0)
    if layout.stage == 0:
        return [Part(what="gradients on their way", bytes=4 * min(trained, 500_000_000))] if layout.ranks > 1 else []
    if layout.stage == 3:
        group = int(min(trained, _setting(layout, "sub_group_size")))
        flat = 0 if layout.offload_optimizer else 4 * group // shards
        return [
            Part(what="buckets of gradients", bytes=4 * _bucket(shape, layout)),
            Part(what="flat gradients", bytes=flat),
        ]
    flat = 4 * trained // shards
    if layout.stage == 2:
        return [Part(what="flat gradients", bytes=flat if layout.width == 4 else 0)]
    return [Part(what="flat gradients", bytes=max(flat, 8 * _bucket(shape, layout)))]


def _loading(shape: ModelShape, layout: LearnerLayout) -> list[Part]:
    if layout.stage == 3:
        return [Part(what="one layer on its way", bytes=shape.layer_parameters * layout.width)]
    if layout.device == "cpu":
        return []  # the file's own pages are the weights, until the first step writes them
    return [Part(what="weights on their way", bytes=shape.parameters * layout.width, place="host")]


def _on(device: str, parts: Iterable[Part]) -> tuple[Part, ...]:
    """On a CPU there is one memory."""
    if device != "cpu":
        return tuple(part for part in parts if part.bytes)
    return tuple(replace(part, place="files" if part.place == "files" else "device") for part in parts if part.bytes)
