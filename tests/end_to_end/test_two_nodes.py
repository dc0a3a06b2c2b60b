"""A run over two nodes of a Ray cluster that runs already: ranks on both, the engine away from rank 0."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from rlhf.cluster.interfaces import own_address
from tests.end_to_end.running import SMALL, largest_difference, train
from tests.raylets import raylets

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

PLAN = (
    "cluster.nodes=2",
    "cluster.learner_placement=spread",
    "trainer.deepspeed.ranks=2",
    "trainer.deepspeed.cpus_per_rank=0.5",
    "rollout.cpus_per_engine=1",
)
"""Over nodes of 1 and 2 cores: rank 0 leaves too little of the first for an engine."""
RAW = ("model.warmup=null", "reward.kind=function", "reward.function=tests.end_to_end.rewards:varied")


def test_ranks_and_engine_on_two_nodes_train_and_agree(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raylets(1, 2) as cluster:
        for variable, value in cluster.environment.items():
            monkeypatch.setenv(variable, value)
        run = train(tmp_path / "run", cache, *SMALL, *RAW, *PLAN, "trainer.updates=2", "--address", cluster.address)
    host = socket.gethostname()
    printed = dict(re.findall(r"^(\w+-\d) +(\S+) ", run.process.stdout, re.MULTILINE))
    assert printed == {"learner-0": f"{host}#1", "learner-1": f"{host}#2", "engine-0": f"{host}#2"}
    assert [metrics["optimizer/grad_norm"] > 0 for metrics in run.metrics] == [True, True]
    assert largest_difference(run.episodes) <= 1e-4, "the engine has the weights of the ranks"
    for worker in printed:
        log = (run.folder / "logs" / f"{worker}.log").read_text()
        assert f"({own_address()}) leads to {own_address()}" in log
