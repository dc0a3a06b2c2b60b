"""One private SLURM and one cache of start models for all tests here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.private import PrivateSlurm, private_slurm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)


def as_ctrl_c(number: int, frame: object) -> None:
    """Whoever ends pytest leaves no cluster behind. Once: `timeout` signals the program, and then its whole group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def slurm() -> Iterator[PrivateSlurm]:
    signal.signal(signal.SIGTERM, as_ctrl_c)
    with private_slurm() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")
