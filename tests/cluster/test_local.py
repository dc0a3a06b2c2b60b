"""The contract of clusters, with every worker in this process, and typed calls of its workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rlhf.cluster.host import WorkerHost
from rlhf.cluster.local import LocalCluster, LocalWorker
from rlhf.cluster.worker import WorkerHandle
from rlhf.errors import PlacementError, WorkerFailed
from tests.cluster.contract import CALCULATORS, STUBBORN, UNFINISHED, WORKERS, Contract
from tests.cluster.workers import Office


class TestLocalCluster(Contract):
    hang_seconds = 0.5

    @pytest_asyncio.fixture
    async def cluster(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RLHF_TEST_COLOUR"):
            monkeypatch.setenv(variable, "1")
        cluster = LocalCluster()
        await cluster.start([CALCULATORS, STUBBORN, replace(UNFINISHED, start_timeout_seconds=0.2)], tmp_path)
        await cluster.spawn("calculator", lambda index: {"index": index})
        yield cluster
        await cluster.stop()


async def test_two_roles_that_set_one_variable_differently_are_refused_by_name(tmp_path: Path) -> None:
    other = replace(CALCULATORS, name="painter", env={"RLHF_TEST_COLOUR": "red"})
    clash = "calculator sets RLHF_TEST_COLOUR=green and painter sets RLHF_TEST_COLOUR=red"
    with pytest.raises(PlacementError, match=clash):
        await LocalCluster().start([CALCULATORS, other], tmp_path)


@pytest_asyncio.fixture
async def office() -> AsyncIterator[WorkerHandle[Office]]:
    worker = LocalWorker("office-0", WorkerHost(f"{WORKERS}:Office", 1))
    await worker.construct({}, timeout_seconds=10)
    yield WorkerHandle(worker)
    await worker.close()


async def test_a_typed_call_reaches_the_object_or_one_of_its_parts(office: WorkerHandle[Office]) -> None:
    assert await office.call(lambda there: there.opens(8, minutes=30), timeout_seconds=10) == "8:30"
    assert await office.call(lambda there: there.calculator.add(1, right=2), timeout_seconds=10) == 3
    assert await office.call(lambda there: there.calculator.later("word"), timeout_seconds=10) == "word"


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda there: there.calculator.fail(), WorkerFailed, r"office-0\.calculator\.fail failed: KeyError"),
        (lambda there: there.closed.add(1), WorkerFailed, r"office-0\.closed\.add failed: RuntimeError: the office is"),
        (lambda there: there.opens, TypeError, "office-0 can only run a function that ends with the call of a method"),
        (lambda there: there._calculator.add(1), AttributeError, "_calculator is not public"),
    ],
    ids=["a method raises", "a part raises", "a method is not called", "a part is private"],
)
async def test_a_typed_call_that_fails_names_its_cause(
    office: WorkerHandle[Office], ask: Callable[[Office], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await office.call(ask, timeout_seconds=10)
