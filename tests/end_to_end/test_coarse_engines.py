"""Engines with quantised weights and keys: they sample from another policy than the learner's, which is weighed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import train

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

COARSE = ("model.dtype=bfloat16", "rollout.vllm.quantization=fp8_per_channel", "rollout.vllm.kv_cache_dtype=fp8")
WEIGHED = ("trainer.mismatch=ignore", "trainer.proximal_logprobs=recomputed", "trainer.weight_sync.tolerance=1.0")


def test_the_quickstart_learns_from_engines_of_8_bits_whose_tokens_are_weighed(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "run", cache, *COARSE, *WEIGHED, "cluster.kind=local", "trainer.updates=12")
    assert run.summary["eval_reward_end"] > 0.8
    apart = [update["mismatch/k3"] for update in run.metrics if "mismatch/k3" in update]
    assert 1e-4 < sum(apart) / len(apart) < 0.05, "8 bits are not 16, and not another policy either"
