"""What our client sends and our server answers is what vLLM itself reads and writes: checked with vLLM's own models."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from pydantic import TypeAdapter

from rlhf.reward.bodies import BODIES
from rlhf.reward.config import RemoteConfig
from rlhf.reward.wire import SHAPES, scores
from tests.reward.test_wire import EPISODES, TASK

pytestmark = pytest.mark.engine

MODELS = {
    "vllm_classify": "classify.protocol:Classification",
    "vllm_pooling": "pooling.protocol:Pooling",
    "vllm_score": "scoring.protocol:Score",
}


def model(shape: str, kind: str) -> Any:
    """vLLM's `Request` or `Response` of a shape. Importing vLLM takes seconds: not while tests are collected."""
    module, name = MODELS[shape].split(":")
    return getattr(import_module(f"vllm.entrypoints.pooling.{module}"), f"{name}{kind}")


@pytest.mark.parametrize("shape", MODELS)
def test_vllm_reads_what_our_client_sends_and_uses_no_activation(shape: str) -> None:
    for sends in ("text", "tokens") if shape != "vllm_score" else ("text",):
        remote = RemoteConfig(url="http://h", api=shape, sends=sends, model="rm")  # type: ignore[arg-type]
        (exchange,) = SHAPES[shape].ask(TASK, EPISODES, remote)
        assert TypeAdapter(model(shape, "Request")).validate_python(dict(exchange.body)).use_activation is False


@pytest.mark.parametrize("shape", MODELS)
def test_our_server_answers_as_vllm_does_and_our_client_reads_what_vllm_writes(shape: str) -> None:
    (exchange,) = SHAPES[shape].ask(TASK, EPISODES, RemoteConfig(url="http://h", api=shape))  # type: ignore[arg-type]
    body: Any = BODIES[exchange.path]
    ours = body.model_validate(exchange.body).answer([1.5, -2.0]).model_dump()
    theirs = model(shape, "Response").model_validate(ours)
    assert set(ours) == set(theirs.model_dump())
    assert set(ours["data"][0]) == set(theirs.model_dump()["data"][0])
    assert scores(SHAPES[shape], theirs.model_dump(), 2) == [1.5, -2.0]
