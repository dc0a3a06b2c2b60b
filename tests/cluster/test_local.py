"""The contract of clusters, with every worker in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from rlhf.cluster.local import LocalCluster
from rlhf.errors import PlacementError
from tests.cluster.contract import CALCULATORS, STUBBORN, UNFINISHED, Contract


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
