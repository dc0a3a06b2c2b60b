"""Requests that are refused before vLLM sees them."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf.engines.vllm.engine_worker import why_refused
from rlhf.engines.vllm.environment import engine_environment
from rlhf.engines.vllm.settings import EngineFacts, GenerateRequest

FACTS = EngineFacts(max_context_tokens=8, vocab_size=10, vllm_version="0", seconds=1, max_sequences=4)


def request(*tokens: int, temperature: float = 1.0, max_tokens: int = 4) -> GenerateRequest:
    return GenerateRequest("r", np.array(tokens, dtype=np.int32), temperature, max_tokens, seed=0)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (request(), "no tokens"),
        (request(*range(8)), "8 tokens leaves no room for a reply in a context of 8"),
        (request(10), "outside the vocabulary of 10"),
        (request(-1), "outside the vocabulary of 10"),
        (request(1, max_tokens=0), "max_tokens is 0"),
        (request(1, temperature=0.001), "temperature is 0.001"),
        (request(1, temperature=-1), "temperature is -1"),
    ],
)
def test_a_request_that_cannot_be_answered_as_asked_is_refused(refused: GenerateRequest, why: str) -> None:
    assert why in why_refused(refused, FACTS)


@pytest.mark.parametrize("answered", [request(1, 2), request(*range(7)), request(9, temperature=0)])
def test_others_are_answered(answered: GenerateRequest) -> None:
    assert why_refused(answered, FACTS) == ""


def test_an_engine_runs_inside_its_worker_and_compiles_only_on_a_gpu() -> None:
    cpu, cuda = engine_environment("cpu"), engine_environment("cuda")
    assert cpu["VLLM_ENABLE_V1_MULTIPROCESSING"] == cuda["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "TORCH_COMPILE_DISABLE" in cpu
    assert "TORCH_COMPILE_DISABLE" not in cuda
