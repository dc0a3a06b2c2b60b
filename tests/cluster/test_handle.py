"""A call that is written as one on the object reaches the worker's object, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rlhf.cluster.handle import WorkerHandle
from rlhf.cluster.host import WorkerHost
from rlhf.cluster.local import LocalWorker
from rlhf.errors import WorkerFailed
from tests.cluster.workers import Office


@pytest.fixture
def office() -> Iterator[WorkerHandle[Office]]:
    worker = LocalWorker("office-0", WorkerHost("tests.cluster.workers:Office", 1))
    asyncio.run(worker.construct({}, timeout_seconds=10))
    yield WorkerHandle(worker)
    asyncio.run(worker.close())


def test_a_method_of_the_object_and_of_its_parts_is_called_with_its_arguments(office: WorkerHandle[Office]) -> None:
    assert asyncio.run(office.call(lambda one: one.opens(8, minutes=30), timeout_seconds=10)) == "8:30"
    assert asyncio.run(office.call(lambda one: one.calculator.add(1, right=2), timeout_seconds=10)) == 3


def test_a_coroutine_is_awaited_where_it_lives(office: WorkerHandle[Office]) -> None:
    assert asyncio.run(office.call(lambda one: one.calculator.later("word"), timeout_seconds=10)) == "word"


def test_a_failure_names_the_worker_the_part_and_the_method(office: WorkerHandle[Office]) -> None:
    with pytest.raises(WorkerFailed, match=r"office-0\.calculator\.fail failed: KeyError"):
        asyncio.run(office.call(lambda one: one.calculator.fail(), timeout_seconds=10))


def test_a_part_that_is_not_there_yet_is_the_call_s_failure(office: WorkerHandle[Office]) -> None:
    with pytest.raises(WorkerFailed, match=r"office-0\.closed\.add failed: RuntimeError: the office is closed"):
        asyncio.run(office.call(lambda one: one.closed.add(1), timeout_seconds=10))


def test_a_method_that_is_named_and_not_called_is_a_mistake_here(office: WorkerHandle[Office]) -> None:
    with pytest.raises(TypeError, match="office-0 was to be asked by a function that ends with the call of a method"):
        asyncio.run(office.call(lambda one: one.opens, timeout_seconds=10))


def test_what_is_not_public_cannot_be_asked_for(office: WorkerHandle[Office]) -> None:
    with pytest.raises(AttributeError, match="_calculator is not public"):
        asyncio.run(office.call(lambda one: one._calculator.add(1), timeout_seconds=10))
