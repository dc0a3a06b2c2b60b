"""A recipe of kind `offline`: what a run recorded teaches another one, which started where that run did, the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from tests.end_to_end.running import Run, train
from tests.model_folders import change
from tests.small_tasks import sorting

pytestmark = pytest.mark.engine

SETTINGS = """
  groups_per_update: 4
  group_size: 4
  epochs: 2
  minibatches: 2
  optimizer: {learning_rate: 1e-3, schedule: linear}
  kl: {coefficient: 0.05}
  overlong: {buffer_tokens: 2}
"""
MORE = "trainer.critic={value_clip: 0.2}", "trainer.advantage.estimator=gae"


def recipe_in(folder: Path, kind: str, data: str) -> Path:
    recipe = folder / f"{kind}.yaml"
    recipe.write_text(
        f"""
kind: {kind}
model: {{path: {folder / "start"}}}
data: {data}
sampling: {{max_tokens: 6}}
reward: {{kind: function, function: "tests.end_to_end.rewards:varied"}}
trainer: {{updates: 3}}
cluster: {{kind: local}}
""".replace("{updates: 3}", f"\n  updates: 3{SETTINGS}")
    )
    return recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offline")
    save_tiny(TinyModelConfig(hidden_size=64, intermediate_size=128, heads=2, kv_heads=1), 0, folder / "start")
    change(folder / "start" / "generation_config.json", temperature=0.9, top_p=0.6)
    return folder


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Run:
    recipe = recipe_in(folder, "rl", f"{{train: {sorting(digits=3, rows=64)}}}")
    return train(folder / "recorded", folder / "models", *MORE, recipe=recipe)


def test_exports_leave_out_what_transformers_refuses_to_save(folder: Path, recorded: Run) -> None:
    assert "exports leave out temperature, top_p of generation_config.json" in recorded.process.stdout
    before, after = (
        json.loads((at / "generation_config.json").read_text()) for at in (folder / "start", recorded.model)
    )
    assert after == {name: value for name, value in before.items() if name not in ("temperature", "top_p")}


@pytest.fixture(scope="module")
def replayed(folder: Path, recorded: Run) -> Run:
    recipe = recipe_in(folder, "offline", f"{{episodes: {recorded.folder}, shuffle: false}}")
    return train(folder / "replayed", folder / "models", *MORE, recipe=recipe)


def weights(model: Path) -> bytes:
    return (model / "model.safetensors").read_bytes()


def test_the_weights_are_those_of_the_run_that_recorded_bit_for_bit(folder: Path, recorded: Run, replayed: Run) -> None:
    assert weights(recorded.model) != weights(folder / "start")
    assert weights(replayed.model) == weights(recorded.model)


def test_so_are_the_metrics(recorded: Run, replayed: Run) -> None:
    names = {
        "reward/mean",
        "policy/approx_kl",
        "optimizer/loss",
        "critic/loss",
        "optimizer/grad_norm",
        "policy/kl_reference",
        "response/tokens_mean",
    }
    assert len(replayed.metrics) == 3
    for one, other in zip(recorded.metrics, replayed.metrics, strict=True):
        assert {name: one[name] for name in names} == {name: other[name] for name in names}


def test_its_books_hold_every_recorded_episode(replayed: Run) -> None:
    summary = replayed.summary
    assert summary["outcome"] == "finished"
    assert summary["samples"] == 48
    assert summary["group_counts"] == {"admitted": 12, "trained": 12, "filtered": 0, "failed": 0, "in_flight": 0}
    assert summary["sample_counts"]["trained"] == summary["sample_counts"]["admitted"] == 48
