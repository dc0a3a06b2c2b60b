"""Pieces of the user's own, `module:function` in a recipe, on a real rank."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.config import load_piece
from rlhf.errors import ConfigError, NotFinite
from rlhf.models.config import ModelConfig
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.losses.policy import ppo
from rlhf.trainer.settings import LearnerSettings
from tests.integration.learner_ranks import ProcessWorker, rank_processes
from tests.trainer.made import made_groups

OWN = "tests.integration.own_pieces"
GROUPS = made_groups(4, 4)


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessWorker]:
    with rank_processes(1) as (only,):
        yield only


def learner_with(worker: ProcessWorker, folder: str, *, loader: str | None = None, **trainer: Any) -> RemoteLearner:
    config = TrainerConfig(**({"optimizer": {"learning_rate": 0.0}} | trainer))
    learner = RemoteLearner([worker], config)
    model = ModelConfig(path=folder, loader=loader)
    asyncio.run(learner.start(LearnerSettings(model_path=folder, model=model, trainer=config)))
    return learner


@pytest.mark.engine
def test_a_loss_of_one_s_own_may_add_its_own_kl_and_entropy_terms(worker: ProcessWorker, folder: str) -> None:
    """Several steps, so that there is a distance: to the digit what the library's terms do. Both read gradients that
    the library has only where a recipe asks for them."""
    steps = {"minibatches": 2, "optimizer": {"learning_rate": 1e-3}}
    loss = {"policy": f"{OWN}:towards_the_reference", "arguments": {"coefficient": 0.5, "entropy": 0.1}}
    ours = {"policy": f"{OWN}:unclipped", "entropy_coefficient": 0.1}
    kl = {"coefficient": 0.5, "estimator": "k2"}
    own, library = (
        asyncio.run(learner_with(worker, folder, **one, **steps).update(GROUPS)).metrics
        for one in ({"loss": loss, "hold_reference": True}, {"loss": ours, "kl": kl})
    )
    assert own["optimizer/grad_norm"] == pytest.approx(library["optimizer/grad_norm"], rel=1e-6)
    assert own["optimizer/loss"] == pytest.approx(library["optimizer/loss"], rel=1e-6)


@pytest.mark.engine
def test_a_model_of_one_s_own_is_the_one_that_is_trained(worker: ProcessWorker, folder: str) -> None:
    tokens = np.arange(3, 20, dtype=np.int32)
    plain = asyncio.run(learner_with(worker, folder).token_logprobs(tokens))
    doubled = asyncio.run(learner_with(worker, folder, loader=f"{OWN}:doubled_embedding").token_logprobs(tokens))
    assert np.abs(plain - doubled).max() > 1e-3


@pytest.mark.engine
def test_advantages_that_are_no_numbers_end_the_update_by_name(worker: ProcessWorker, folder: str) -> None:
    broken = learner_with(worker, folder, advantage={"estimator": f"{OWN}:no_number"})
    with pytest.raises(NotFinite, match="no_number"):
        asyncio.run(broken.update(GROUPS))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:fn", "No module named 'no_such_module'"),
        (f"{OWN}:no_such_function", "no_such_function"),
        (f"{OWN}:OWN_NUMBER", "cannot be imported"),
    ],
)
def test_a_piece_that_is_not_there_is_one_line_with_its_setting(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"trainer\.loss\.policy is {name}.*{words}"):
        load_piece(name, "trainer.loss.policy")


def test_a_loaded_piece_is_the_function_itself() -> None:
    assert load_piece("rlhf.trainer.losses.policy:ppo", "trainer.loss.policy") is ppo
    assert load_piece("torch:exp", "trainer.loss.policy") is torch.exp
