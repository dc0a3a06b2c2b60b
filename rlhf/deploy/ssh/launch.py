"""One run over plain hosts: a Ray node on each, training beside the head's, and one end for all."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rlhf.cluster.plan import Resources, plan
from rlhf.deploy.ssh.hosts_file import SshHost
from rlhf.deploy.ssh.remote_command import RemoteCommand, node_command, train_command, variables
from rlhf.deploy.ssh.session import Print, SshSession, connection
from rlhf.errors import DeadlinePassed, HostError, NodeFailed
from rlhf.http.inert import inert
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import roles_of

END_SECONDS = 40.0
"""For what runs on a host to end in order: longer than its far end gives it."""
RENDEZVOUS, HOSTS_LOG = "rendezvous.json", "hosts.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is launched: a recipe with the words that `rlhf train` gets, and the hosts, the head first."""

    recipe: Recipe
    words: Sequence[str]
    hosts: tuple[SshHost, ...]
    user: str | None
    ssh_config: Path | None
    interface: str | None = None

    def connection(self, host: SshHost, shared: Path) -> list[str]:
        return connection(host, shared, user=self.user, config=self.ssh_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The connections: one a host for its node, and the head's second one, for the training."""

    nodes: tuple[SshSession, ...]
    training: SshSession

    @property
    def all(self) -> tuple[SshSession, ...]:
        return (*self.nodes, self.training)


async def run_on_hosts(launch: Launch) -> int:
    """Train on all hosts; the exit code of the training, 130 when it was told to stop. SIGUSR1 is passed on to it.

    Before anything has started it raises a group of `HostError` where hosts cannot be used, and `PlacementError` where
    all of them together are too small; later `NodeFailed`, when one is lost.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folder = launch.recipe.run_dir.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    shared = Path(tempfile.mkdtemp(prefix=f".{folder.name}-launch-", dir=folder.parent))
    try:
        with (shared / HOSTS_LOG).open("a", buffering=1) as log:
            async with connected_hosts(launch, shared, log) as started:
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, started.training.save)
                return await conducted(launch, started, shared, stop)
    finally:
        keep_log(shared, folder)


@asynccontextmanager
async def connected_hosts(launch: Launch, shared: Path, log: TextIO) -> AsyncIterator[Started]:
    """A connection to every host; on leaving, the training ends first and the nodes after it, whatever happened."""
    opened: list[SshSession] = []
    try:
        for host in launch.hosts:
            told = line_logger(host, log)
            opened.append(await SshSession.open(host, launch.connection(host, shared), told, told))
        words = launch.connection(launch.hosts[0], shared)
        opened.append(await SshSession.open(launch.hosts[0], words, print_line, complain))
        yield Started(nodes=tuple(opened[:-1]), training=opened[-1])
    finally:
        await end(opened[len(launch.hosts) :])
        await end(opened[: len(launch.hosts)])


async def conducted(launch: Launch, started: Started, shared: Path, stop: asyncio.Event) -> int:
    """Give the orders once every host is ready, and wait for the training's end."""
    stopping = asyncio.ensure_future(stop.wait())
    readying = asyncio.ensure_future(all_ready(started.all))
    await asyncio.wait((readying, stopping), return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        readying.cancel()
        return 130
    plan(roles_of(launch.recipe), readying.result()[:-1])
    environment, here, file = variables(launch.recipe.name), Path.cwd(), shared / RENDEZVOUS
    for index, session in enumerate(started.nodes):
        command = node_command(file, session.host, head=index == 0, interface=launch.interface)
        session.order(RemoteCommand(command=command, folder=here, environment=environment))
    started.training.order(
        RemoteCommand(
            command=train_command(launch.words, len(launch.hosts), file), folder=here, environment=environment
        )
    )
    return await first_end(started, stopping)


async def all_ready(sessions: Sequence[SshSession]) -> list[Resources]:
    """What every host has. Raises a group of `HostError`: what cannot be used is put right together."""
    answers = await asyncio.gather(*(ready_or_not(session) for session in sessions))
    if refused := [answer for answer in answers if isinstance(answer, HostError)]:
        raise ExceptionGroup("hosts that cannot be used", unique(refused))
    return [answer for answer in answers if isinstance(answer, Resources)]


async def ready_or_not(session: SshSession) -> Resources | HostError:
    try:
        return await session.ready()
    except HostError as error:
        return error


def unique(errors: Sequence[HostError]) -> list[HostError]:
    """One error a host: the head has two connections, which fail alike."""
    return list({error.host: error for error in errors}.values())


async def first_end(started: Started, stopping: asyncio.Future[Any]) -> int:
    """The training's exit code. Raises `NodeFailed` when a host ends before it."""
    training = asyncio.ensure_future(started.training.wait())
    nodes = {asyncio.ensure_future(session.wait()): session for session in started.nodes}
    waiting: set[asyncio.Future[Any]] = {training, stopping, *nodes}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if training.done():
            return training.result()
        if stopping.done():
            return 130
        lost = next(session for ended, session in nodes.items() if ended.done())
        raise NodeFailed(lost.host.name, f"{lost.host.name}: {lost.ending}")
    finally:
        for one in waiting:
            one.cancel()


async def end(sessions: Sequence[SshSession]) -> None:
    """End what runs there, and name the hosts that did not confirm it."""
    ended = await asyncio.gather(*(session.end(END_SECONDS) for session in sessions), return_exceptions=True)
    for late in ended:
        if isinstance(late, DeadlinePassed):
            complain(f"warning: {late}; it ends by itself when it misses this launcher")


def line_logger(host: SshHost, log: TextIO) -> Print:
    """Writes lines to the log with the host before them."""

    def tell(line: str) -> None:
        log.write(f"{host.name} {line}\n")

    return tell


def print_line(line: str) -> None:
    print(inert(line), flush=True)


def complain(line: str) -> None:
    print(inert(line), file=sys.stderr, flush=True)


def keep_log(shared: Path, run: Path) -> None:
    """The hosts' lines go to the run's logs; without a run folder they stay where they are, if there are any."""
    log = shared / HOSTS_LOG
    if (run / "logs").is_dir():
        with (run / "logs" / HOSTS_LOG).open("a") as kept:
            kept.write(log.read_text())
    elif log.stat().st_size:
        complain(f"what the hosts said is in {log}")
        return
    shutil.rmtree(shared, ignore_errors=True)
