"""Launching over a real ssh: what runs on a host ends with its connection, and a host that cannot be used is named."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rlhf.deploy.heartbeat import LOST_SECONDS
from rlhf.deploy.ssh.hosts_file import SshHost
from rlhf.deploy.ssh.remote import SILENCE_SECONDS
from rlhf.deploy.ssh.remote_command import RemoteCommand
from rlhf.deploy.ssh.session import SshSession, connection
from tests.end_to_end.running import QUICKSTART, ROOT, command, environment
from tests.end_to_end.test_clean_ends import MARK, marked, until
from tests.network.sshd import Sshd, private_sshd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SLEEP = (sys.executable, "-c", "import time; print('sleeps', flush=True); time.sleep(600)")
REFUSALS = {
    "closed": "closed: ssh: connect to host 127.0.0.1 port 1: Connection refused",
    "stranger": "Permission denied (publickey); set up a key: ssh asks for no password here",
    "impostor": "impostor: Host key verification failed.",
    "bare": "has no rlhf of this version there",
    "empty": "make the same virtual environment at the same path",
}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with private_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


async def sleeping(sshd: Sshd, folder: Path) -> SshSession:
    """A session in which a command sleeps, with this folder's mark."""
    words = connection(SshHost(name="first"), folder, user=None, config=sshd.config)
    said: list[str] = []
    session = await SshSession.open(SshHost(name="first"), words, said.append, said.append)
    await session.ready()
    session.order(RemoteCommand(command=SLEEP, folder=folder, environment={MARK: str(folder)}))
    for _ in range(200):
        await asyncio.sleep(0.1)
        if "sleeps" in said:
            return session
    raise TimeoutError(said)


async def test_a_command_ends_when_ssh_is_killed(sshd: Sshd, tmp_path: Path) -> None:
    session = await sleeping(sshd, tmp_path)
    os.kill(session.pid, signal.SIGKILL)
    assert await asyncio.to_thread(until, lambda: not marked(tmp_path), 10)
    assert await session.wait() != 0
    await session.end(10)


async def test_a_command_ends_when_the_launcher_falls_silent(sshd: Sshd, tmp_path: Path) -> None:
    """As when the network is cut: nobody closes the connection."""
    session = await sleeping(sshd, tmp_path)
    os.kill(session.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert await asyncio.to_thread(until, lambda: not marked(tmp_path), SILENCE_SECONDS + 15)
    assert time.monotonic() - began > SILENCE_SECONDS / 2, "a launcher that only hesitates is no launcher that is gone"
    os.kill(session.pid, signal.SIGCONT)
    await session.end(10)


def launch(sshd: Sshd, folder: Path, hosts: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`rlhf launch` of the quickstart; its processes carry the folder's mark."""
    file = folder / "hosts.txt"
    file.write_text(hosts)
    return subprocess.run(
        command("launch", str(QUICKSTART), "--hosts", str(file), "--ssh-config", str(sshd.config), *words),
        cwd=ROOT, env=environment() | {MARK: str(folder)}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


def errors(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in ended.stderr.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("host", REFUSALS)
def test_a_host_that_cannot_be_used_is_one_line(sshd: Sshd, tmp_path: Path, host: str) -> None:
    ended = launch(sshd, tmp_path, f"first cpus=2\n{host} cpus=1\n", f"run.dir={tmp_path}/run")
    assert ended.returncode == 2, ended.stderr
    assert len(errors(ended)) == 1, ended.stderr
    assert REFUSALS[host] in errors(ended)[0]
    assert marked(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.txt"], "nothing was started, and nothing is left"


def test_a_host_that_never_answers_is_one_line_in_bounded_time_beside_the_others(sshd: Sshd, tmp_path: Path) -> None:
    began = time.monotonic()
    ended = launch(sshd, tmp_path, "first\nmute\nclosed\n", f"run.dir={tmp_path}/run")
    assert time.monotonic() - began < 60
    assert ended.returncode == 2
    told = errors(ended)
    assert [line.split(":")[1].strip() for line in told] == ["mute", "closed"]
    assert "Connection timed out" in told[0]
    assert marked(tmp_path) == []


TINY = (
    "model.warmup=null", "data.eval=null", "trainer.groups_per_update=8", "trainer.group_size=4",
    "cluster.learner_placement=spread", "trainer.deepspeed.ranks=2", "trainer.deepspeed.cpus_per_rank=1",
    "rollout.cpus_per_engine=1", "cluster.placement_timeout_seconds=120",
)  # fmt: skip
HOSTS = "first cpus=1 gpus=0   # the head\nsecond cpus=2 gpus=0\n"


def places(folder: Path) -> tuple[str, str]:
    return f"run.dir={folder}/run", f"model.cache_dir={folder}/models"


@pytest.mark.engine
def test_a_run_over_two_hosts_reaches_its_end_and_leaves_nothing(sshd: Sshd, tmp_path: Path) -> None:
    ended = launch(sshd, tmp_path, HOSTS, *places(tmp_path), *TINY, "trainer.updates=3")
    assert ended.returncode == 0, ended.stderr
    assert "3 updates" in ended.stdout
    said = (tmp_path / "run/logs/hosts.log").read_text().splitlines()
    assert any(line.startswith("first ") and "is the head of run quickstart-" in line for line in said)
    assert any(line.startswith("second ") and "joined" in line for line in said)
    assert {line.partition(" ")[0] for line in said} == {"first", "second"}
    assert marked(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {"hosts.txt", "models", "run"}


@contextmanager
def training(sshd: Sshd, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A launch in the middle of its training, in a process group of its own."""
    (folder / "hosts.txt").write_text(HOSTS)
    words = ("launch", str(QUICKSTART), "--hosts", str(folder / "hosts.txt"), "--ssh-config", str(sshd.config))
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        launched = subprocess.Popen(
            command(*words, *places(folder), *TINY, "trainer.updates=100000"),
            cwd=ROOT, env=environment() | {MARK: str(folder)}, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
    try:
        assert until(lambda: b"update " in (folder / "out").read_bytes() or launched.poll() is not None, 240)
        assert launched.poll() is None, (folder / "err").read_text()
        yield launched
    finally:
        launched.kill()
        for left in marked(folder):
            left.kill()


@pytest.mark.engine
def test_sigterm_ends_all_hosts_and_the_token_is_on_no_command_line(sshd: Sshd, tmp_path: Path) -> None:
    with training(sshd, tmp_path) as launched:
        token = next(found for one in marked(tmp_path) if (found := one.environ().get("RAY_AUTH_TOKEN")))
        everyones = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        assert any("rlhf.deploy.ssh.remote" in line for line in everyones)
        assert not any(token in line for line in everyones)
        os.killpg(launched.pid, signal.SIGTERM)
        assert launched.wait(60) == 130
        assert until(lambda: not marked(tmp_path), 10)
    assert "stopped; the results so far are in" in (tmp_path / "err").read_text()
    assert json.loads((tmp_path / "run/summary.json").read_text())["outcome"] == "stopped"


def second_node(folder: Path) -> psutil.Process:
    """What the far end of the second host runs."""
    return next(one for one in marked(folder) if is_worker_node(one) and "remote" in " ".join(one.parent().cmdline()))


def is_worker_node(process: psutil.Process) -> bool:
    words = process.cmdline()
    return "--rendezvous" in words and "node" in words and "--head" not in words


@pytest.mark.engine
def test_a_node_that_ends_in_the_middle_is_named(sshd: Sshd, tmp_path: Path) -> None:
    with training(sshd, tmp_path) as launched:
        second_node(tmp_path).kill()
        assert launched.wait(90) == 1
        assert until(lambda: not marked(tmp_path), 10)
    assert "error: second: its node ended" in (tmp_path / "err").read_text()


@pytest.mark.engine
def test_a_connection_that_falls_silent_is_named(sshd: Sshd, tmp_path: Path) -> None:
    """As when the network is cut: nobody closes it, neither here nor there."""
    with training(sshd, tmp_path) as launched:
        far_end = second_node(tmp_path).parent()
        server = next(one for one in far_end.parents() if one.name().startswith("sshd"))
        server.suspend()
        try:
            assert launched.wait(LOST_SECONDS + 60) == 1
            assert until(lambda: not marked(tmp_path), SILENCE_SECONDS)
        finally:
            server.resume()
    assert "error: second: its connection is lost" in (tmp_path / "err").read_text()
