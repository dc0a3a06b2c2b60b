"""What every cluster keeps. `Contract` runs over the one in this process and over Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf.cluster.roles import Role
from rlhf.cluster.worker import Cluster
from rlhf.errors import DataError, DeadlinePassed, PlacementError, WorkerFailed
from rlhf.tracing import SpanIds, within
from tests.fakes import exporting_to
from tests.pace import scaled

WORKERS = "tests.cluster.workers"
GREEN = {"RLHF_TEST_COLOUR": "green"}
CALCULATORS = Role(name="calculator", count=2, cpus=0.25, factory=f"{WORKERS}:Calculator", env=GREEN)
STUBBORN = Role(name="stubborn", count=1, cpus=0.25, factory=f"{WORKERS}:Stubborn")
UNFINISHED = Role(name="unfinished", count=1, cpus=0.25, factory=f"{WORKERS}:Unfinished", start_timeout_seconds=3)


def nothing(index: int) -> Mapping[str, Any]:
    return {}


class Contract:
    """Subclasses give a fixture `cluster`: started with these three roles, the calculators spawned with their index.

    `hang_seconds` is longer than the start of an unfinished worker may take.
    """

    hang_seconds: float

    async def test_an_answer_comes_back(self, cluster: Cluster) -> None:
        first, second = cluster.workers("calculator")
        assert (first.name, second.name) == ("calculator-0", "calculator-1")
        assert await first.call("add", 1, right=2, timeout_seconds=10) == 3

    async def test_a_coroutine_is_awaited_where_it_lives(self, cluster: Cluster) -> None:
        assert await cluster.workers("calculator")[0].call("later", "word", timeout_seconds=10) == "word"

    async def test_arrays_go_there_and_back(self, cluster: Cluster) -> None:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        doubled = await cluster.workers("calculator")[1].call("double", array, timeout_seconds=10)
        np.testing.assert_array_equal(doubled, array * 2)
        assert doubled.dtype == np.float32

    async def test_the_roles_environment_is_set(self, cluster: Cluster) -> None:
        worker = cluster.workers("calculator")[0]
        assert await worker.call("variable", "RLHF_TEST_COLOUR", timeout_seconds=10) == "green"
        assert await worker.call("variable", "OMP_NUM_THREADS", timeout_seconds=10) == "1"

    async def test_two_calls_of_one_worker_run_at_the_same_time(self, cluster: Cluster) -> None:
        worker = cluster.workers("calculator")[0]
        met = await asyncio.gather(*(worker.call("meet", timeout_seconds=15) for _ in range(2)))
        assert sorted(met) == [0, 1]

    async def test_an_exception_names_worker_and_method_and_keeps_its_traceback(self, cluster: Cluster) -> None:
        with pytest.raises(WorkerFailed, match=r"calculator-1\.fail failed: KeyError: 'no such thing'") as failed:
            await cluster.workers("calculator")[1].call("fail", timeout_seconds=10)
        assert 'raise KeyError("no such thing")' in failed.value.remote_traceback

    async def test_a_call_within_a_trace_is_a_span_of_the_worker(self, cluster: Cluster) -> None:
        ended: list[Any] = []
        worker = cluster.workers("calculator")[1]
        with within(exporting_to(ended, SpanIds(7, 8))):
            await worker.call("later", "word", timeout_seconds=10)
            with pytest.raises(WorkerFailed):
                await worker.call("fail", timeout_seconds=10)
        await worker.call("later", "word", timeout_seconds=10)
        assert [(span.name, parent, process) for span, _, parent, process in ended] == [
            ("later", (7, 8), "calculator-1"), ("fail", (7, 8), "calculator-1"),
        ]  # fmt: skip
        assert abs(ended[0][0].start - time.time()) < scaled(10)
        assert {ids.trace for _, ids, _, _ in ended} == {7}

    async def test_a_method_that_is_not_there_is_the_calls_failure(self, cluster: Cluster) -> None:
        with pytest.raises(WorkerFailed, match="AttributeError"):
            await cluster.workers("calculator")[0].call("divide", timeout_seconds=10)

    async def test_a_users_error_stays_one(self, cluster: Cluster) -> None:
        with pytest.raises(DataError, match=r"^row 3 has no column 'answer'; give data\.train\.answer_column$"):
            await cluster.workers("calculator")[0].call("refuse", timeout_seconds=10)

    async def test_a_late_answer_passes_its_deadline_and_the_worker_lives(self, cluster: Cluster) -> None:
        worker = cluster.workers("calculator")[0]
        with pytest.raises(DeadlinePassed, match=r"calculator-0\.sleep did not answer within 0\.3 s"):
            await worker.call("sleep", 1.5, timeout_seconds=0.3)
        assert await worker.call("add", 1, timeout_seconds=10) == 1

    async def test_a_constructor_that_refuses_says_why(self, cluster: Cluster) -> None:
        with pytest.raises(DataError, match=r"the folder is empty; give model\.path"):
            await cluster.spawn("stubborn", nothing)

    async def test_a_constructor_that_hangs_passes_its_deadline(self, cluster: Cluster) -> None:
        with pytest.raises(DeadlinePassed, match=r"unfinished-0\.start did not answer within"):
            await cluster.spawn("unfinished", lambda index: {"seconds": self.hang_seconds})

    async def test_more_than_there_is_is_refused_before_anything_starts(self, cluster: Cluster, tmp_path: Path) -> None:
        greedy = Role(name="greedy", count=1, cpus=4096, factory=f"{WORKERS}:Calculator", hint="its size")
        with pytest.raises(PlacementError, match=r"4096 cores asked, this machine has .*; lower its size"):
            await type(cluster)().start([greedy], tmp_path)
