"""Settings of a vLLM engine, and the messages between controller and engine: plain types only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf.types import FinishReason, Routing

UNPUBLISHED = -1
"""Version of an engine's initial weights, before the first weight sync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one engine. `weight_transfer` names vLLM's backend for weight syncs; an engine without one only
    evaluates.

    A reply ends at any of `stop_token_ids`, after any of the texts `stop`, or at its token budget. `max_context_tokens`
    None is the model's own limit. On a CPU `kv_cache_megabytes` is the KV cache; on a GPU it is what remains of
    `gpu_memory_utilization`. `max_sequences` None is vLLM's own choice for the device. With a `lora_rank`, a weight
    sync sends only adapters of that rank, for the layers named `lora_targets`. With `routing`, replies report which
    experts were chosen for each token. `repeatable` gives requests their seeds also where that is slow. `vllm` are
    further arguments of vLLM, by its own names. An engine that `sleeps` can give its memory back between two weight
    syncs.
    """

    model: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    max_context_tokens: int | None = None
    max_sequences: int | None = None
    tensor_parallel_size: int = 1
    kv_cache_megabytes: int = 256
    gpu_memory_utilization: float = 0.5
    weight_transfer: str | None = None
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    trust_remote_code: bool = False
    routing: bool = False
    repeatable: bool = False
    sleeps: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    start_timeout_seconds: float = 300
    command_timeout_seconds: float = 120
    vllm: Mapping[str, Any] = field(default_factory=dict)


def requests_have_seeds(settings: EngineSettings, *, model_runner: int) -> bool:
    """Whether every request draws by its own seed: where that costs nothing, or the settings ask for it. vLLM's model
    runner 2 draws by a counter; runner 1 keeps a generator for every seed, and on a GPU launches a kernel for each."""
    return settings.device == "cpu" or model_runner == 2 or settings.repeatable


class EngineFacts(NamedTuple):
    """What a started engine reports about itself; `seconds` is its start time, imports included, and
    `max_sequences` how many sequences it runs at once."""

    max_context_tokens: int
    vocab_size: int
    vllm_version: str
    seconds: float
    max_sequences: int = 256


class GenerateRequest(NamedTuple):
    """One prompt to continue: `token_ids` `int32 [P]`. Temperature 0 is greedy."""

    id: str
    token_ids: NDArray[np.int32]
    temperature: float
    max_tokens: int
    seed: int


class Finished(NamedTuple):
    """One reply `[N]`, its stop token included; greedy replies have log-probs at temperature 1. `routing` `int16 [P + N
    - 1, layers, k]` are the experts chosen for all tokens except the last, which was not computed; None where it was
    not requested, or where the request was cut off while it waited."""

    id: str
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    reason: FinishReason
    routing: Routing | None = None


class RefusedRequest(NamedTuple):
    """A request without a reply. `broken` distinguishes an engine that can answer no further request from one invalid
    request."""

    id: str
    detail: str
    broken: bool = False
