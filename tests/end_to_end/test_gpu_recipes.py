"""Every recipe for GPUs trains two updates on a CPU, with a tiny model of its architecture, real ranks and engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.recipe.loading import load_recipe
from tests.datasets import GSM8K
from tests.end_to_end import running
from tests.end_to_end.running import train
from tests.recipe.planning.gpu_recipes import MACHINES, recipe_file

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

ARCHITECTURES = {"moe_30b_a3b": "qwen3_moe", "llama_70b_16_nodes": "llama", "long_context_64k": "llama"}
"""Of the others it is qwen2."""
SMALL = (
    "model.path=null", "model.tiny.max_position_embeddings=2048", "model.tiny.kv_heads=2",
    "rollout.gpus_per_engine=0", "rollout.engines=1", "rollout.tensor_parallel_size=1", "rollout.cpus_per_engine=0.5",
    "rollout.max_context_tokens=null", "trainer.deepspeed.gpus_per_rank=0", "trainer.deepspeed.cpus_per_rank=0.5",
    "sampling.max_tokens=16", "trainer.updates=2", "trainer.groups_per_update=2", "trainer.group_size=2",
    "trainer.tokens_per_microbatch=2048", "trainer.weight_sync.bucket_megabytes=1", "reward.workers=1",
)  # fmt: skip
ROWS = {"path": GSM8K, "name": "null", "prompt_column": "question", "answer_column": "answer"}


def small(name: str) -> list[str]:
    """The overrides that make a recipe a run of a minute on two cores."""
    recipe = load_recipe(recipe_file(name)).recipe
    sharded = recipe.trainer.deepspeed.ranks > 1
    rows = [f"data.{part}.{key}={value}" for part in ("train", "eval") for key, value in ROWS.items()]
    return [
        *SMALL,
        f"model.tiny.architecture={ARCHITECTURES.get(name, 'qwen2')}",
        *rows,
        r"data.train.answer_pattern='####\s*(.+)'",
        r"data.eval.answer_pattern='####\s*(.+)'",
        "data.eval.limit=4",
        f"trainer.deepspeed.ranks={2 if sharded else 1}",
        *(["trainer.deepspeed.sequence_parallel=2"] if recipe.trainer.deepspeed.sequence_parallel > 1 else []),
        *(["trainer.overlong.buffer_tokens=8"] if recipe.trainer.overlong.buffer_tokens else []),
    ]


@pytest.mark.parametrize("name", MACHINES)
def test_a_recipe_trains_two_updates_with_a_tiny_model(
    name: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "RUN_SECONDS", 600)
    run = train(tmp_path / "run", cache, *small(name), recipe=recipe_file(name))
    assert (run.summary["outcome"], run.summary["updates"]) == ("finished", 2)
    assert run.summary["samples"] == 2 * 2 * 2
