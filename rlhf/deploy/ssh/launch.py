"""Launches one run on plain hosts: a Ray node on each, training on the head's host, all ended together."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rlhf.cluster.roles import Resources, check_resources
from rlhf.cluster.supervisor import ENDINGS
from rlhf.deploy.ssh.hosts_file import SshHost
from rlhf.deploy.ssh.remote_command import RemoteCommand, node_command, train_command, variables
from rlhf.deploy.ssh.session import SshSession, connection
from rlhf.errors import DeadlinePassed, HostError, NodeFailed
from rlhf.http.untrusted_text import escape_controls
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import roles_of

END_SECONDS = 40.0
"""Deadline for a host to end its command in order: longer than the remote process gives the command."""
RENDEZVOUS, HOSTS_LOG = "rendezvous.json", "hosts.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch: a recipe with the arguments of `rlhf train`, and the hosts, the head first."""

    recipe: Recipe
    words: Sequence[str]
    hosts: tuple[SshHost, ...]
    user: str | None
    ssh_config: Path | None
    interface: str | None = None

    def connection(self, host: SshHost, shared: Path) -> list[str]:
        """Return the ssh command that connects to one host."""
        return connection(host, shared, user=self.user, config=self.ssh_config)


async def run_on_hosts(launch: Launch) -> int:
    """Train on all hosts. Return the training's exit code, or 130 after a stop signal. SIGUSR1 is forwarded to the
    training, and so is the first Ctrl-C once it has its orders. Raises, before anything is started, a group of
    `HostError` for unusable hosts, and `PlacementError` for too small ones; `NodeFailed` when a host is lost."""
    stop = asyncio.Event()
    for number in ENDINGS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folder = launch.recipe.run_dir.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    shared = Path(tempfile.mkdtemp(prefix=f".{folder.name}-launch-", dir=folder.parent))
    try:
        with (shared / HOSTS_LOG).open("a", buffering=1) as log:
            async with connected_hosts(launch, shared, log) as (training, nodes):
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, training.save)
                return await train_on_hosts(launch, training, nodes, shared, stop)
    finally:
        keep_log(shared, folder)


@asynccontextmanager
async def connected_hosts(
    launch: Launch, shared: Path, log: TextIO
) -> AsyncIterator[tuple[SshSession, list[SshSession]]]:
    """Connect to every host for its node, and to the head's again for the training: yield the training's connection and
    the nodes'. On exit the training is ended first and the nodes after it, in every case."""
    nodes: list[SshSession] = []
    training: list[SshSession] = []
    try:
        for host in launch.hosts:
            to_log = partial(write_line, host, log)
            nodes.append(await SshSession.open(host, launch.connection(host, shared), to_log, to_log))
        words = launch.connection(launch.hosts[0], shared)
        training.append(await SshSession.open(launch.hosts[0], words, print_line, print_error))
        yield training[0], nodes
    finally:
        await end(training)
        await end(nodes)


async def train_on_hosts(
    launch: Launch, training: SshSession, nodes: Sequence[SshSession], shared: Path, stop: asyncio.Event
) -> int:
    """Send the commands once every host is ready, and wait for the training to end."""
    stopping = asyncio.ensure_future(stop.wait())
    preparing = asyncio.ensure_future(all_ready([*nodes, training]))
    await asyncio.wait((preparing, stopping), return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        preparing.cancel()
        return 130
    check_resources(roles_of(launch.recipe), preparing.result()[:-1])
    file = shared / RENDEZVOUS
    command = partial(RemoteCommand, folder=Path.cwd(), environment=variables(launch.recipe.name))
    for index, session in enumerate(nodes):
        session.order(command(command=node_command(file, session.host, head=index == 0, interface=launch.interface)))
    training.order(command(command=train_command(launch.words, len(launch.hosts), file)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, save_first, training, stop)
    return await first_end(training, nodes, stopping)


def save_first(training: SshSession, stop: asyncio.Event) -> None:
    """Have the training save and end; the next Ctrl-C ends everything at once."""
    print(
        "Ctrl-C: the run saves after this update and ends; press it again to end at once", file=sys.stderr, flush=True
    )
    training.save()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)


async def all_ready(sessions: Sequence[SshSession]) -> list[Resources]:
    """Return the resources of every host. Raises a group of `HostError`, one for each unusable host."""
    answers = await asyncio.gather(*(session.ready() for session in sessions), return_exceptions=True)
    for error in answers:
        if isinstance(error, BaseException) and not isinstance(error, HostError):
            raise error
    if refused := {answer.host: answer for answer in answers if isinstance(answer, HostError)}:
        raise ExceptionGroup("hosts that cannot be used", list(refused.values()))
    return [answer for answer in answers if isinstance(answer, Resources)]


async def first_end(training: SshSession, nodes: Sequence[SshSession], stopping: asyncio.Future[Any]) -> int:
    """Return the training's exit code. Raises `NodeFailed` when a node ends before the training."""
    trained = asyncio.ensure_future(training.wait())
    ended = {asyncio.ensure_future(session.wait()): session for session in nodes}
    waiting: set[asyncio.Future[Any]] = {trained, stopping, *ended}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if trained.done():
            return trained.result()
        if stopping.done():
            return 130
        lost = next(session for task, session in ended.items() if task.done())
        raise NodeFailed(f"{lost.host.name}: {lost.ending}")
    finally:
        for task in waiting:
            task.cancel()


async def end(sessions: Sequence[SshSession]) -> None:
    """End all commands on these connections, and warn about hosts that did not confirm it."""
    ended = await asyncio.gather(*(session.end(END_SECONDS) for session in sessions), return_exceptions=True)
    for late in ended:
        if isinstance(late, DeadlinePassed):
            print_error(f"warning: {late}; it ends by itself after its heartbeat times out")


def write_line(host: SshHost, log: TextIO, line: str) -> None:
    """Write a line to the log, after the host's name."""
    log.write(f"{host.name} {line}\n")


def print_line(line: str) -> None:
    """Print a line on standard output, with control characters escaped."""
    print(escape_controls(line), flush=True)


def print_error(line: str) -> None:
    """Print a line on standard error, with control characters escaped."""
    print(escape_controls(line), file=sys.stderr, flush=True)


def keep_log(shared: Path, run: Path) -> None:
    """Append the hosts' output to the run's logs. Without a run folder a log that is not empty stays where it is."""
    log = shared / HOSTS_LOG
    if (run / "logs").is_dir():
        with (run / "logs" / HOSTS_LOG).open("a") as target:
            target.write(log.read_text())
    elif log.stat().st_size:
        print_error(f"the output of the hosts is in {log}")
        return
    shutil.rmtree(shared, ignore_errors=True)
