"""Ranks and engines that take turns: two of each train as they do apart, and a stopped run goes on bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.running import SMALL, Run, largest_difference, train
from tests.end_to_end.test_resume import died_at_its_end, same_to_the_bit

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

RAW = (
    *SMALL, "model.warmup=null", "reward.kind=function", "reward.function=tests.end_to_end.rewards:varied",
    "trainer.optimizer.learning_rate=1e-3", "trainer.deepspeed.ranks=2", "rollout.engines=2",
)  # fmt: skip
COLOCATED = "cluster.placement=colocated"
COMPARED = ("reward/mean", "optimizer/loss", "optimizer/grad_norm", "policy/approx_kl")


def turns(run: Run) -> list[str]:
    """The phases of a run in their order: what the ranks hold, and everything that is timed between."""
    spans = [json.loads(line) for line in (run.folder / "spans.jsonl").read_text().splitlines()]
    shown = [span for span in spans if span["name"] in ("sleep", "hold", "save", "evaluate")]
    return [span.get("held", span["name"]) for span in sorted(shown, key=lambda span: span["start"])]


def test_two_ranks_and_two_engines_take_turns_and_agree_on_every_token(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "run", cache, *RAW, COLOCATED, "trainer.updates=2", "trainer.deepspeed.zero_stage=2")
    assert largest_difference(run.episodes) <= 1e-4
    update, sync = ["sleep", "everything"], ["weights", "nothing"]
    saved = ["save", *update, *sync]
    assert turns(run) == [*sync, "evaluate", *update, *sync, *update, *sync, *saved, "evaluate"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 3])
def test_a_colocated_run_is_the_separate_one_and_goes_on_bit_for_bit(tmp_path: Path, cache: Path, stage: int) -> None:
    plan = (*RAW, f"trainer.deepspeed.zero_stage={stage}", "trainer.updates=4", "trainer.save_every=2")
    separate = train(tmp_path / "separate", cache, *plan)
    whole = train(tmp_path / "whole", cache, *plan, COLOCATED)
    assert len(separate.metrics) == len(whole.metrics) == 4
    for one, other in zip(separate.metrics, whole.metrics, strict=True):
        assert [one[name] for name in COMPARED] == pytest.approx([other[name] for name in COMPARED], abs=1e-5)
    resumed = train(died_at_its_end(whole, tmp_path / "died"), cache, *plan, COLOCATED, "--resume")
    assert "resuming from version-000002" in resumed.process.stdout
    assert same_to_the_bit(resumed, whole)
