"""Fixtures that several files of real parts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from tests.integration.learner_ranks import ProcessWorker, rank_processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny start model."""
    config = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=96)
    return str(save_tiny(config, 0, tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def single() -> Iterator[list[ProcessWorker]]:
    """The process of one learner rank."""
    with rank_processes(1) as workers:
        yield workers


@pytest.fixture(scope="module")
def pair() -> Iterator[list[ProcessWorker]]:
    """The processes of two learner ranks."""
    with rank_processes(2) as workers:
        yield workers
