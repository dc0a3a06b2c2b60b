"""Real DeepSpeed ranks and a real engine: ZeRO stages, ranks, adapters or none, tied heads or not.

For each the engine computes what the learner does after every publish, and the folder on disk does too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import peft
import pytest
import torch

from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import CheckpointError
from rlhf.models.config import LoraConfig, ModelConfig, TinyModelConfig
from rlhf.models.head import chosen_logprobs
from rlhf.models.loading import load_policy
from rlhf.models.tiny import save_tiny
from rlhf.trainer.config import DeepSpeedConfig, KLConfig, OptimizerConfig, TrainerConfig, WeightSyncConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.settings import LearnerSettings
from rlhf.weight_sync import weights
from rlhf.weight_sync.canary import canary
from rlhf.weight_sync.publish import Publisher
from rlhf.weight_sync.tolerance import EXACT
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import look, same
from tests.integration.torch_learner import ThreadedEngine
from tests.trainer.made import made_groups
from tests.whole import whole_state

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CANARY = np.arange(3, 40, dtype=np.int32)
GROUPS = made_groups(8, 4)
MERGED = LoraConfig(rank=4, alpha=6)
ADAPTER = LoraConfig(rank=4, alpha=6, target_modules=("q_proj", "v_proj"), weight_sync="adapter")
PLANS = [(ranks, stage) for ranks in (1, 2) for stage in (0, 1, 2, 3)]
CORNERS = {("merged", False, 2, 3), ("adapter", True, 2, 3)}
"""Of the matrix: what is not left to the slow tests. Without LoRA the end-to-end plans are the corners."""


class Served(NamedTuple):
    """A start model and an engine on it; `lora` is how its learners are to train it."""

    folder: str
    engine: ThreadedEngine
    lora: LoraConfig | None


def made_folder(path: Path, *, tied: bool) -> str:
    return str(
        save_tiny(TinyModelConfig(hidden_size=64, intermediate_size=128, heads=2, tie_word_embeddings=tied), 0, path)
    )


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One engine at a time: two share no process well."""
    form, tied = request.param
    os.environ.update(engine_environment("cpu"))
    folder = made_folder(tmp_path_factory.mktemp("model"), tied=tied)
    lora = {"whole": None, "merged": MERGED, "adapter": ADAPTER}[form]
    adapters = {"lora": lora} if form == "adapter" else {}
    engine = ThreadedEngine(Path(folder), "float32", **adapters)
    yield Served(folder, engine, lora)
    engine.stop()


def trainer(count: int, stage: int, **changes: object) -> TrainerConfig:
    return TrainerConfig(
        updates=20,
        optimizer=OptimizerConfig(learning_rate=1e-2),
        deepspeed=DeepSpeedConfig(ranks=count, zero_stage=stage, timeout_seconds=120, start_timeout_seconds=240),
        weight_sync=WeightSyncConfig(bucket_megabytes=0.1),
        **changes,
    )


async def started(
    workers: list[ProcessWorker], folder: str, lora: LoraConfig | None, config: TrainerConfig, dtype: str = "float32"
) -> RemoteLearner:
    learner = RemoteLearner(workers, config)
    model = ModelConfig(path=folder, lora=lora, dtype=dtype)
    await learner.start(LearnerSettings(model_path=folder, model=model, trainer=config))
    return learner


def folder_scores(folder: Path | str, adapter: Path | None = None) -> np.ndarray:
    model = load_policy(str(folder))
    read = peft.PeftModel.from_pretrained(model, adapter) if adapter else model
    ids = torch.tensor(CANARY).long()
    with torch.no_grad():
        logprobs, _ = chosen_logprobs(read(ids[None]).logits[0, :-1], ids[1:])
    return logprobs.numpy()


def matrix() -> Iterator[object]:
    for form in ("whole", "merged", "adapter"):
        for tied in (True, False):
            for count, stage in PLANS:
                marks = [] if (form, tied, count, stage) in CORNERS else [pytest.mark.slow]
                tag = f"{form}-{'tied' if tied else 'untied'}-{count}-ranks-zero{stage}"
                yield pytest.param((form, tied), count, stage, marks=marks, id=tag)


@pytest.mark.parametrize(("served", "count", "stage"), matrix(), indirect=["served"])
async def test_engine_and_folder_compute_what_the_learner_does_after_every_publish(
    request: pytest.FixtureRequest, served: Served, count: int, stage: int, tmp_path: Path
) -> None:
    workers = ranks_of(request, count)
    learner = await started(workers, served.folder, served.lora, trainer(count, stage))
    tolerance = EXACT.high
    publisher = Publisher(learner, [served.engine], canary=canary(256, 256, EXACT), phase_timeout_seconds=120)
    await publisher.connect()
    await publisher.verify()
    for version in (1, 2):
        await learner.update(GROUPS)
        assert await publisher.publish() == version
        assert publisher.logprob_difference <= tolerance
    scores = await learner.token_logprobs(CANARY)
    assert np.abs((await served.engine.token_logprobs(CANARY)).logprobs - scores).max() <= tolerance
    assert np.abs(folder_scores(served.folder) - scores).max() > 10 * tolerance, "something was learnt"
    await learner.save(tmp_path)
    np.testing.assert_allclose(folder_scores(tmp_path / "huggingface"), scores, rtol=0, atol=2e-6)
    if served.lora:
        np.testing.assert_allclose(folder_scores(served.folder, tmp_path / "adapter"), scores, rtol=0, atol=2e-6)
    await learner.stop()


def held(rank: Rank) -> dict[str, torch.Tensor]:
    """Base and adapters, whole, unmerged."""
    return weights.whole_adapter(rank.policy, 1 << 20, keep=True) | whole_state(rank.policy)


SLOW = pytest.mark.slow
PRECISE = [
    pytest.param(2, 3, "float32"),
    pytest.param(1, 0, "bfloat16", marks=SLOW),
    pytest.param(2, 2, "float32", marks=SLOW),
]


@pytest.mark.parametrize(("count", "stage", "dtype"), PRECISE)
async def test_adapters_and_averages_continue_bit_for_bit_after_a_start_check_and_a_resume(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, count: int, stage: int, dtype: str
) -> None:
    workers, config = ranks_of(request, count), trainer(count, stage, ema_decay=0.5)
    learner = await started(workers, folder, MERGED, config, dtype)
    await learner.update(GROUPS)
    before = look(workers, held)
    await learner.perturb()
    assert not any(torch.equal(tensor, before[name]) for name, tensor in look(workers, held).items())
    await learner.restore()
    assert same(look(workers, held), before)
    await learner.save(tmp_path / "one")
    await learner.update(GROUPS)
    await learner.save(tmp_path / "uninterrupted")
    resumed = await started(workers, folder, MERGED, config, dtype)
    await resumed.load(tmp_path / "one")
    assert resumed.version == 1
    await resumed.update(GROUPS)
    await resumed.save(tmp_path / "resumed")
    for exported in ("huggingface", "huggingface_ema"):
        one, other = (load_policy(str(tmp_path / run / exported), dtype=dtype) for run in ("uninterrupted", "resumed"))
        assert same(dict(one.named_parameters()), dict(other.named_parameters())), exported


@pytest.mark.parametrize(("count", "stage"), [(1, 0), (2, 3)])
async def test_the_average_on_disk_is_that_of_the_policies_on_disk(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, count: int, stage: int
) -> None:
    """Without LoRA, where the average of the weights is the average of what is exported."""
    workers = ranks_of(request, count)
    learner = await started(workers, folder, None, trainer(count, stage, ema_decay=0.75))
    average = {name: weight.detach().double() for name, weight in load_policy(folder).named_parameters()}
    for update in range(2):
        await learner.update(GROUPS)
        await learner.save(tmp_path / str(update))
        learnt = dict(load_policy(str(tmp_path / str(update) / "huggingface")).named_parameters())
        average = {name: 0.75 * average[name] + 0.25 * learnt[name].detach().double() for name in average}
    found = dict(load_policy(str(tmp_path / "1" / "huggingface_ema")).named_parameters())
    for name, weight in found.items():
        torch.testing.assert_close(weight.detach().double(), average[name], rtol=0, atol=1e-6)
    assert same(look(workers, held), {name: weight.detach() for name, weight in learnt.items()}), (
        "it learns on as it was"
    )


@pytest.mark.parametrize(("count", "stage"), [pytest.param(1, 0, marks=SLOW), (2, 3)])
async def test_the_reference_of_a_policy_with_lora_is_its_base(
    request: pytest.FixtureRequest, folder: str, count: int, stage: int
) -> None:
    """The same KL as beside a frozen copy, which nobody holds; the start has none."""
    workers, changes = ranks_of(request, count), {"kl": KLConfig(coefficient=0.1)}
    learner = await started(workers, folder, MERGED, trainer(count, stage, **changes))
    free = [(await learner.update(GROUPS)).metrics["policy/kl_reference"] for _ in range(2)]
    copied = await started(workers, folder, MERGED, trainer(count, stage, reference_path=folder, **changes))
    held_once = [(await copied.update(GROUPS)).metrics["policy/kl_reference"] for _ in range(2)]
    assert free[0] == pytest.approx(0, abs=1e-9)
    assert free[1] > 1e-4
    assert free == pytest.approx(held_once, rel=1e-4, abs=1e-9)


async def test_a_state_with_other_adapters_is_refused(single: list[ProcessWorker], folder: str, tmp_path: Path) -> None:
    learner = await started(single, folder, MERGED, trainer(1, 0))
    await learner.save(tmp_path)
    other = await started(single, folder, None, trainer(1, 0))
    with pytest.raises(CheckpointError, match=r"LoRA of rank 4 for all linear layers; this run has 1 rank\(s\)"):
        await other.load(tmp_path)
