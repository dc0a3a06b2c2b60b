"""Engines that are split over processes, under Ray: they train, they stop, and what is killed is named."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.test_clean_ends import END_SECONDS, long_run, marked, until, worker_of
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

HEADS = ("model.tiny.heads=2", "model.tiny.kv_heads=2", "rollout.kv_cache_megabytes=32")


def segments() -> set[Path]:
    return set(Path("/dev/shm").glob("vllm_dist_*"))


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
