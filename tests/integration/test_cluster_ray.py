"""The contract of clusters over a real Ray, and what happens to workers that die."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from rlhf.cluster.ray_cluster import RayCluster
from rlhf.cluster.roles import Role
from rlhf.errors import PlacementError, WorkerDied
from tests.cluster.contract import CALCULATORS, STUBBORN, UNFINISHED, WORKERS, Contract
from tests.pace import scaled
from tests.warm import client as fork_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
THERE = """
class There:
    def place(self):
        return __file__
"""
OF_THE_SITE = ("HF_HOME", "HF_TOKEN", "NCCL_DEBUG", "NO_PROXY")
VICTIMS = Role(name="victim", count=4, cpus=0.1, factory=f"{WORKERS}:Calculator")


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(strangers: set[int], log_dir: Path) -> AsyncIterator[RayCluster]:
    cluster = RayCluster()
    (log_dir / "only_there.py").write_text(THERE)
    there = Role(name="finder", count=1, cpus=0.1, factory="only_there:There", python_path=(str(log_dir),))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT))  # for Ray, whose workers are to find the tests
        for name in OF_THE_SITE:
            environment.setenv(name, f"{name} of the site")
        await cluster.start([CALCULATORS, VICTIMS, STUBBORN, UNFINISHED, there], log_dir)
    await cluster.spawn("calculator", lambda index: {"index": index})
    await cluster.spawn("victim", lambda index: {"index": index})
    yield cluster
    await cluster.stop()


class TestRayCluster(Contract):
    hang_seconds = 60.0


async def test_what_a_worker_and_its_children_print_is_in_its_log(cluster: RayCluster, log_dir: Path) -> None:
    await cluster.workers("calculator")[1].call("say", "good morning", timeout_seconds=scaled(10))
    assert (log_dir / "calculator-1.log").read_text().splitlines()[-2:] == ["good morning", "child: good morning"]


async def test_ray_runs_no_monitor_that_nobody_reads(cluster: RayCluster) -> None:
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert any("gcs_server" in command for command in commands)
    assert not [command for command in commands if "monitor.py" in command]


async def test_a_worker_has_the_variables_of_the_shell_that_started_the_run(cluster: RayCluster) -> None:
    worker = cluster.workers("calculator")[0]
    told = [await worker.call("variable", name, timeout_seconds=scaled(10)) for name in OF_THE_SITE]
    assert told == [f"{name} of the site" for name in OF_THE_SITE]


async def test_a_worker_finds_modules_of_the_folders_that_its_role_names(cluster: RayCluster, log_dir: Path) -> None:
    (finder,) = await cluster.spawn("finder", lambda index: {})
    assert await finder.call("place", timeout_seconds=scaled(10)) == str(log_dir / "only_there.py")


async def test_a_worker_killed_while_idle_is_named_with_its_signal(cluster: RayCluster) -> None:
    watching = asyncio.ensure_future(cluster.watch())
    pid = await cluster.workers("victim")[0].call("pid", timeout_seconds=scaled(10))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"^victim-0 died: killed by SIGKILL$"):
        await asyncio.wait_for(watching, scaled(5))


async def test_a_call_that_is_pending_on_a_killed_worker_fails_at_once(cluster: RayCluster) -> None:
    victim = cluster.workers("victim")[1]
    pid = await victim.call("pid", timeout_seconds=scaled(10))
    pending = asyncio.ensure_future(victim.call("sleep", 60, timeout_seconds=scaled(60)))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    os.kill(pid, signal.SIGSEGV)
    with pytest.raises(WorkerDied, match=r"^victim-1 died: killed by SIGSEGV$"):
        await pending
    assert time.monotonic() - began < scaled(5)


async def test_a_worker_that_leaves_is_named_with_its_exit_code(cluster: RayCluster) -> None:
    with pytest.raises(WorkerDied, match=r"^victim-2 died: exited with code 3$"):
        await cluster.workers("victim")[2].call("exit", 3, timeout_seconds=scaled(10))


async def test_a_call_of_a_dead_worker_names_the_cause_again(cluster: RayCluster) -> None:
    victim = cluster.workers("victim")[3]
    os.kill(await victim.call("pid", timeout_seconds=scaled(10)), signal.SIGTERM)
    await asyncio.sleep(1)
    with pytest.raises(WorkerDied, match=r"^victim-3 died: killed by SIGTERM$"):
        await victim.call("add", 1, timeout_seconds=scaled(10))


async def test_after_stop_no_process_and_no_private_folder_is_left(
    strangers: set[int], cluster: RayCluster, private_temp: Path
) -> None:
    assert children(strangers), "a running Ray has processes"
    began = time.monotonic()
    await cluster.stop()
    assert time.monotonic() - began < scaled(30)
    assert children(strangers) == []
    assert not list(private_temp.glob("ray-*"))


async def test_an_address_where_no_ray_answers_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=r"no Ray cluster answers at '127\.0\.0\.1:1' .*correct cluster\.address"):
        await RayCluster(address="127.0.0.1:1").start([CALCULATORS], tmp_path)


@pytest.fixture(scope="module", autouse=True)
def private_temp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the Ray sockets of this module, short enough for them."""
    tmp_path_factory.getbasetemp()  # made here, so that pytest's folder is not inside this one
    folder = Path("/tmp") / f"t{os.getpid()}"
    folder.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    yield folder
    tempfile.tempdir = before
    folder.rmdir()


@pytest.fixture(scope="module")
def strangers() -> set[int]:
    """Processes that other tests of this session have started and keep, such as multiprocessing's trackers, or would
    start meanwhile."""
    fork_server.started()
    return {child.pid for child in psutil.Process().children(recursive=True)}


def children(strangers: set[int]) -> list[list[str]]:
    """Command lines of this process's living descendants, but for strangers and what is below them."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            ours = strangers.isdisjoint({child.pid, *(parent.pid for parent in child.parents())})
            if ours and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.cmdline())
    return found
