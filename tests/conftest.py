"""What holds for every test: in CI a skip fails, nothing asks a hub or a display, deadlines are the machine's."""

from __future__ import annotations

import gc
import os
import signal

import pytest

from rlhf.cluster.ray_connection import PRIVATE_RAY
from tests.older_processor import pretend
from tests.pace import pace, scaled
from tests.warm import client as warm

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of several processes on the same cores wait by spinning
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # as engines on a CPU: torch reads it at its first import
os.environ.update(PRIVATE_RAY)  # vLLM of one file imports Ray, which reads them only then, before another starts it

LONG = (
    "tests/end_to_end/",
    "tests/integration/",
    "tests/single_file/",
    "tests/env/test_faults",
    "tests/apps/deploy/test_node",
)
TEST_SECONDS = 300
"""What a test has that names no time of its own, on the machine for which all these times were chosen."""


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with `&` hands on that it is ignored
    pretend()
    pace()
    gc.disable()  # until all is imported, of which nothing is garbage
    if not _is_worker(config):
        warm.make_folder(os.getpid())


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):
        warm.end()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_worker(config):  # of the files that are dealt out, the long ones first, so that both end together
        items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    for item in items:
        own = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(scaled(own.args[0] if own else TEST_SECONDS)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _is_worker(config: pytest.Config) -> bool:
    """Whether this is a process of pytest-xdist, whose parent has set up the session."""
    return hasattr(config, "workerinput")
