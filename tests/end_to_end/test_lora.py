"""Whole runs that train adapters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf.apps.cli.export import run_export
from rlhf.runs.records import EpisodeRecord
from tests.end_to_end.running import ROOT, SMALL, largest_difference, train, versions_of
from tests.end_to_end.test_plans import LOCAL

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

RECIPE = ROOT / "recipes" / "lora_grpo.yaml"
MOVING = (
    *SMALL,
    "model.warmup=null",
    "reward.kind=function",
    "reward.function=tests.end_to_end.rewards:varied",
    "trainer.updates=4",
    "trainer.max_staleness=1",
    "trainer.ema_decay=0.5",
    "sampling.max_tokens=64",
)
"""A random model and a reward that varies: nothing is learnt, and every update moves the adapters."""


@pytest.mark.parametrize("form", ["adapter", pytest.param("merged", marks=pytest.mark.slow)])
def test_engine_and_learner_agree_on_every_token_while_adapters_change_under_running_requests(
    tmp_path: Path, cache: Path, form: str
) -> None:
    run = train(tmp_path / "run", cache, *MOVING, LOCAL, f"model.lora.weight_sync={form}", recipe=RECIPE)
    assert largest_difference([fresh(episode) for episode in run.episodes]) <= 1e-4
    assert largest_difference(run.episodes) > 1e-2, "older tokens are of other adapters: every update moved them"
    assert any(len(set(versions_of(episode))) > 1 for episode in run.episodes), (
        "some episode was sampled by two versions"
    )
    assert all(versions_of(episode) == sorted(versions_of(episode)) for episode in run.episodes)
    written = {path.name for path in run.model.parent.iterdir()}
    assert {"huggingface", "huggingface_ema", "adapter"} <= written
    check_exports(run.folder, next(cache.glob("*/config.json")).parent, tmp_path)


def check_exports(run: Path, base: Path, folder: Path) -> None:
    """What is taken away: the adapter over its base is the merged model, and names no folder of this machine."""
    run_export(run, folder / "merged")
    run_export(run, folder / "adapter", adapter=True)
    run_export(run, folder / "half", ema=True, dtype="bfloat16")
    described = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] is None, "the recipe made the base, which has no name"
    assert "library_name: peft" in (folder / "adapter" / "README.md").read_text()
    over_base = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(folder / "merged")
    half = AutoModelForCausalLM.from_pretrained(folder / "half", dtype="auto")
    assert half.dtype == torch.bfloat16
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        expected = merged(tokens).logits
        torch.testing.assert_close(over_base(tokens).logits, expected, atol=1e-4, rtol=0)
        assert not torch.equal(half.float()(tokens).logits, expected)


def fresh(episode: EpisodeRecord) -> EpisodeRecord:
    """The record with only the tokens that the newest adapters before its update sampled."""
    assert episode.behaviour_logprobs is not None
    assert episode.versions is not None
    assert episode.update is not None
    newest = episode.versions == episode.update - 1
    return replace(episode, behaviour_logprobs=np.where(newest, episode.behaviour_logprobs, np.nan))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_the_recipe_raises_the_held_out_reward(tmp_path: Path, cache: Path, form: str) -> None:
    run = train(tmp_path / "run", cache, f"model.lora.weight_sync={form}", recipe=RECIPE)
    assert run.summary["eval_reward_end"] - run.summary["eval_reward_start"] >= 0.3
