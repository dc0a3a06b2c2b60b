"""The same run on every plan: engines, ranks, ZeRO stages, temperatures, architectures, staleness."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.end_to_end.running import SMALL, Run, largest_difference, left_as_they_were, train, versions_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

RAW = (
    *SMALL,
    "model.warmup=null",
    "reward.kind=function",
    "reward.function=tests.end_to_end.rewards:varied",
    "trainer.optimizer.learning_rate=1e-3",
)
"""A random model and a reward that varies: nothing is learnt, and every update moves the weights."""
EVERY_CHECKPOINT = ("trainer.save_every=1", "trainer.keep_checkpoints=2")
LOCAL = "cluster.kind=local"


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(
            ("rollout.tensor_parallel_size=2", "rollout.cpus_per_engine=0.25", "trainer.deepspeed.ranks=2",
             "trainer.deepspeed.zero_stage=3", "model.tiny.architecture=llama", "model.tiny.tie_word_embeddings=false",
             "sampling.temperature=1.5"),
            id="engine-of-2-processes-2-ranks-zero3-llama-untied-hot",
        ),
        pytest.param(
            ("trainer.deepspeed.ranks=2", "trainer.deepspeed.zero_stage=2", "model.tiny.architecture=qwen3",
             "sampling.temperature=0.6"),
            id="2-ranks-zero2-qwen3-tied-cold",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (LOCAL, "trainer.deepspeed.zero_stage=1", "model.tiny.tie_word_embeddings=false",
             "sampling.temperature=0.6", "trainer.kl.coefficient=0.01"),
            id="local-zero1-qwen2-untied-cold",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_engine_and_learner_agree_on_every_token_after_every_publish(
    tmp_path: Path, cache: Path, plan: tuple[str, ...]
) -> None:
    run = train(tmp_path / "run", cache, *RAW, *EVERY_CHECKPOINT, "trainer.updates=2", *plan)
    assert largest_difference(run.episodes) <= 1e-4
    assert [left_as_they_were(*pair) for pair in pairwise(run.models)] == [set()]


@pytest.mark.parametrize(
    ("staleness", "plan"),
    [
        pytest.param(1, (LOCAL,), id="1-update-1-engine", marks=pytest.mark.slow),
        pytest.param(4, (LOCAL,), id="4-updates-1-engine", marks=pytest.mark.slow),
        pytest.param(1, ("rollout.engines=2",), id="1-update-2-engines", marks=pytest.mark.slow),
        pytest.param(4, ("rollout.engines=2",), id="4-updates-2-engines"),
    ],
)
def test_staleness_stays_within_its_bound_and_nothing_is_lost(
    tmp_path: Path, cache: Path, staleness: int, plan: tuple[str, ...]
) -> None:
    run = train(
        tmp_path / "run", cache, *RAW, "trainer.updates=8", f"trainer.max_staleness={staleness}",
        "sampling.max_tokens=48", *plan,
    )  # fmt: skip
    episodes = run.episodes
    assert {episode.outcome for episode in episodes} == {"trained"}, "no group is discarded for being slow"
    measured = {episode.update - 1 - version for episode in episodes for version in versions_of(episode)}
    assert max(measured) == staleness
    assert min(measured) >= 0
    assert_books_balance(run)


@pytest.mark.slow
def test_a_run_with_spoiled_groups_finishes_and_its_books_balance(tmp_path: Path, cache: Path) -> None:
    run = train(
        tmp_path / "run", cache, *RAW, "trainer.updates=6", "trainer.max_staleness=1", LOCAL,
        "reward.function=tests.end_to_end.rewards:moody", "trainer.filter.equal_rewards=true", "data.eval=null",
    )  # fmt: skip
    groups = run.summary["group_counts"]
    assert groups["failed"] > 0
    assert groups["filtered"] > 0
    assert groups["trained"] == 6 * 8, "every update was whole"
    assert_books_balance(run)


def assert_books_balance(run: Run) -> None:
    groups, samples = run.summary["group_counts"], run.summary["sample_counts"]
    assert groups["admitted"] == sum(count for outcome, count in groups.items() if outcome != "admitted")
    assert samples["admitted"] == sum(count for outcome, count in samples.items() if outcome != "admitted")
    assert samples["admitted"] == len(run.episodes) == 4 * groups["admitted"]
