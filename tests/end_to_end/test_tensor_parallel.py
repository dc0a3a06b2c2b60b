"""Engines that are split over processes, under Ray: they train, they stop, and what is killed is named."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.running import SMALL, largest_difference, train
from tests.end_to_end.test_clean_ends import END_SECONDS, long_run, marked, until, worker_of
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

HEADS = ("model.tiny.heads=2", "model.tiny.kv_heads=2", "rollout.kv_cache_megabytes=32")
RAW = (*SMALL, *HEADS, "model.warmup=null", "trainer.updates=2")


def segments() -> set[Path]:
    return set(Path("/dev/shm").glob("vllm_dist_*"))


@pytest.mark.slow
def test_engines_of_one_and_of_two_processes_train_together(tmp_path: Path, cache: Path) -> None:
    before = segments()
    run = train(tmp_path / "run", cache, *RAW, "rollout.tensor_parallel_size=[1, 2]", "sampling.max_tokens=24")
    assert {episode.engine for episode in run.episodes} == {"engine-tp1-0", "engine-tp2-0"}
    assert {version for episode in run.episodes for version in episode.versions or []} == {None, 0, 1}
    assert largest_difference(run.episodes) <= 1e-4
    assert segments() <= before


@pytest.mark.slow
def test_the_quickstart_learns_on_an_engine_of_two_processes(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "run", cache, "rollout.tensor_parallel_size=2", "trainer.updates=6")
    assert {episode.engine for episode in run.episodes} == {"engine-0"}
    assert run.summary["eval_reward_end"] > 0.6
    assert largest_difference(run.episodes) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("child", [False, True])
def test_a_killed_engine_or_one_of_its_processes_ends_the_run_by_name(
    tmp_path: Path, cache: Path, *, child: bool
) -> None:
    folder, before = tmp_path / "run", segments()
    with long_run(folder, cache, *HEADS, "rollout.tensor_parallel_size=2") as process:
        worker = worker_of(folder, "engine-0.log")
        (split_of(worker)[0] if child else worker).kill()
        assert process.wait(timeout=scaled(60)) == 1
        assert until(lambda: not marked(folder), END_SECONDS), marked(folder)
    assert "engine-0" in json.loads((folder / "summary.json").read_text())["outcome"]
    assert segments() <= before


def split_of(worker: psutil.Process) -> list[psutil.Process]:
    """The processes over which vLLM has split the engine."""
    children = [one for one in worker.children() if "spawn_main" in " ".join(one.cmdline()) or "VLLM" in one.name()]
    assert len(children) >= 2, [(one.name(), one.cmdline()) for one in worker.children()]
    return children
