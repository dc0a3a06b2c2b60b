"""Settings of a vLLM engine, and the messages between controller and engine: plain types only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf.engines.config import RolloutConfig
from rlhf.models.config import ModelConfig

UNPUBLISHED = -1
"""Version of an engine's initial weights, before the first weight sync."""
CPU_SEQUENCES = 256
"""Sequences at once on a CPU, where vLLM has no figures for different machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one engine: the recipe's `model` and `rollout`, and values derived from other parts of the recipe.

    A reply ends at any of `stop_token_ids`, after any of the texts `stop`, or at its token budget. `weight_transfer`
    names vLLM's backend for weight syncs; an engine without one only evaluates. With `model.lora`, resolved for this
    model's layers, a weight sync sends only adapters: one, or one for each of `policies`, the names of which are in
    requests. With `records_routing`, replies report which experts were chosen
    for each token. An engine that `sleeps` can release its memory between two weight syncs.
    """

    model_path: str
    model: ModelConfig
    rollout: RolloutConfig
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    tensor_parallel_size: int = 1
    weight_transfer: str | None = None
    records_routing: bool = False
    sleeps: bool = False
    policies: tuple[str, ...] = ("",)
    adapters: tuple[str, ...] = ()
    """The folders of the policies' adapters, in an engine without weight syncs."""
    device: Literal["cpu", "cuda"] = "cpu"


def requests_have_seeds(settings: EngineSettings, *, model_runner: int) -> bool:
    """Whether every request draws with its own seed: if that costs nothing. vLLM's model runner 2 draws by a counter;
    runner 1 keeps a generator for every seed, and on a GPU launches a kernel for each."""
    return settings.device == "cpu" or model_runner == 2


class EngineFacts(NamedTuple):
    """Facts that a started engine reports. `seconds` is its start time, imports included, and `max_sequences` the
    number of sequences that it runs at once."""

    max_context_tokens: int
    vocab_size: int
    vllm_version: str
    seconds: float
    max_sequences: int


class ImagePlace(NamedTuple):
    """Which image begins where among a request's tokens, and the checksum of its tensors."""

    sha256: str
    start: int
    checksum: int


class GenerateRequest(NamedTuple):
    """One prompt to continue: `token_ids` `int32 [P]`. Temperature 0 is greedy. Another engine sampled the last
    `sampled` tokens with this seed. `structure` is that of `Sampling`, `policy` that of `Prompt`, and `images` the
    places of its images, which the engine keeps."""

    id: str
    token_ids: NDArray[np.int32]
    temperature: float
    max_tokens: int
    seed: int
    sampled: int = 0
    structure: str = ""
    policy: str = ""
    images: tuple[ImagePlace, ...] = ()


class RefusedRequest(NamedTuple):
    """A request without a reply. `broken`: the engine can answer no further request; else only this one is invalid."""

    detail: str
    broken: bool = False
