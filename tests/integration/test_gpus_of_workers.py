"""The GPUs that every worker sees: real Ray, four nodes that say they have 8 each, cheap workers in the real roles."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlhf.recipe.workers import ENGINE, LEARNER
from tests.pace import scaled
from tests.raylets import RayletCluster, raylets

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

NODES, GPUS = 4, 8
ON_GPUS = ("rollout.gpus_per_engine=1", "trainer.deepspeed.gpus_per_rank=1")
COLOCATED = (
    *ON_GPUS,
    "cluster.placement=colocated",
    "trainer.deepspeed.ranks=8",
    "rollout.engines=4",
    "rollout.tensor_parallel_size=2",
)


@dataclass(frozen=True)
class Seen:
    """A worker's node, and the GPUs that its process sees."""

    node: str
    gpus: list[str]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayletCluster]:
    with raylets(*[16] * NODES, gpus=GPUS) as cluster, pytest.MonkeyPatch.context() as environment:
        for variable, value in cluster.environment.items():
            environment.setenv(variable, value)
        yield cluster


def seen(address: str, log_dir: Path, *overrides: str) -> dict[str, Seen]:
    """What every worker of the quickstart with these overrides sees, by its name; and a worker without GPUs."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.integration.seen_gpus", address, str(NODES), str(log_dir), *overrides],
        capture_output=True, text=True, timeout=scaled(200),
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-3000:]
    found = json.loads(told.stdout.splitlines()[-1])
    return {worker: Seen(node, gpus) for worker, (node, gpus) in found.items()}


def of(role: str, workers: dict[str, Seen]) -> list[Seen]:
    return [workers[name] for name in sorted(workers) if name.startswith(f"{role}-")]


@pytest.mark.parametrize(("layout", "used"), [("pack", 1), ("spread", 4)])
def test_a_colocated_engine_sees_the_gpus_of_its_ranks_and_no_two_ranks_share_one(
    nodes: RayletCluster, tmp_path: Path, layout: str, used: int
) -> None:
    workers = seen(nodes.address, tmp_path, *COLOCATED, f"cluster.learner_placement={layout}")
    ranks, engines = of(LEARNER, workers), of(ENGINE, workers)
    assert len({rank.node for rank in ranks}) == used
    assert len({(rank.node, *rank.gpus) for rank in ranks}) == 8
    assert {len(rank.gpus) for rank in ranks} == {1}
    for index, engine in enumerate(engines):
        first, second = ranks[2 * index : 2 * index + 2]
        assert engine == Seen(first.node, first.gpus + second.gpus)
        assert second.node == engine.node
    assert workers["bystander-0"].gpus == []


def test_separate_workers_have_gpus_of_their_own_and_the_others_see_none(nodes: RayletCluster, tmp_path: Path) -> None:
    four = ("trainer.deepspeed.ranks=4", "rollout.engines=1", "rollout.tensor_parallel_size=4")
    workers = seen(nodes.address, tmp_path, *ON_GPUS, *four)
    shown = [(one.node, gpu) for one in (*of(LEARNER, workers), *of(ENGINE, workers)) for gpu in one.gpus]
    assert len(set(shown)) == len(shown) == 8
    assert [len(workers[name].gpus) for name in ("learner-0", "engine-0", "bystander-0")] == [1, 4, 0]
