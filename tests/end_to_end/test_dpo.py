"""A recipe of kind `preference`: a policy learns to prefer what it is shown, and held-out pairs tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from tests.end_to_end.running import ROOT, Run, train
from tests.end_to_end.test_resume import died_at_its_end, files_of, same_states, timeless

pytestmark = pytest.mark.engine


RECIPE = ROOT / "recipes" / "dpo.yaml"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    policy = tmp_path_factory.mktemp("policy")
    save_tiny(TinyModelConfig(hidden_size=64, intermediate_size=128, layers=1), 0, policy)
    return (
        "cluster.kind=local", "model.tiny=null", "model.warmup=null", f"model.path={policy}",
        "trainer.updates=12", "trainer.save_every=6", "trainer.groups_per_update=32", "trainer.eval_every=6",
        "data.eval.arguments.rows=64", "trainer.optimizer.warmup_steps=0", "trainer.optimizer.learning_rate=1e-3",
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    return train(tmp_path_factory.mktemp("dpo") / "run", cache, *settings, recipe=RECIPE)


def test_held_out_pairs_are_judged_by_implicit_rewards_before_between_and_after(run: Run) -> None:
    held_out = run.summary["evaluations"]["held_out"]
    assert held_out["problems"] == 64
    assert held_out["start"]["accuracy"] == 0.5, "a policy that is its reference ties every pair"
    assert held_out["start"]["margin"] == 0.0
    assert held_out["end"]["accuracy"] > 0.6
    assert held_out["end"]["margin"] > 0.0
    judged = [line for line in run.metrics if "eval/held_out/accuracy" in line]
    assert [line["update"] for line in judged] == [6, 12]


def test_the_loss_falls_and_the_books_count_pairs(run: Run) -> None:
    losses = [line["pairs/loss"] for line in run.metrics]
    assert losses[0] == pytest.approx(0.693147, abs=1e-5)
    assert losses[-1] < 0.67
    assert {"pairs/margin", "pairs/accuracy", "pairs/reward_chosen", "pairs/reward_rejected"} <= set(run.metrics[-1])
    assert (run.summary["updates"], run.summary["samples"]) == (12, 12 * 32)


def test_its_checkpoint_is_a_policy(run: Run) -> None:
    assert (run.model / "model.safetensors").is_file()
    assert "ForCausalLM" in (run.model / "config.json").read_text()


def test_it_goes_on_from_a_checkpoint_as_if_it_had_not_ended_and_only_with_the_same_reference(
    run: Run, settings: tuple[str, ...], tmp_path: Path, cache: Path
) -> None:
    died = died_at_its_end(run, tmp_path / "died")
    was, other = files_of(died), f"trainer.reference_path={run.model}"
    refused = train(died, cache, *settings, other, "--resume", recipe=RECIPE, expect=2)
    assert f"trainer.reference_path: differs from what {died} began with" in refused.process.stderr
    assert files_of(died) == was, "a start that is refused changes nothing"
    resumed = train(died, cache, *settings, "--resume", recipe=RECIPE)
    assert "resuming from version-000006: 6 of 12 updates are done" in resumed.process.stdout
    assert list(map(timeless, resumed.metrics)) == list(map(timeless, run.metrics))
    assert len(run.metrics) == 12
    assert resumed.summary["evaluations"] == run.summary["evaluations"]
    assert same_states(resumed, run)
