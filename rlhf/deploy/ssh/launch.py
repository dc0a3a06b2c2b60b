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
from pathlib import Path
from typing import Any, TextIO

from rlhf.cluster.roles import Resources, check_resources
from rlhf.deploy.ssh.hosts_file import SshHost
from rlhf.deploy.ssh.remote_command import RemoteCommand, node_command, train_command, variables
from rlhf.deploy.ssh.session import Print, SshSession, connection
from rlhf.errors import DeadlinePassed, HostError, NodeFailed
from rlhf.http.untrusted_text import escape_controls
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import roles_of

END_SECONDS = 40.0
"""Deadline for a host to end its command in order: longer than the remote process gives the command."""
RENDEZVOUS, HOSTS_LOG = "rendezvous.json", "hosts.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to launch: a recipe with the arguments of `rlhf train`, and the hosts, the head first."""

    recipe: Recipe
    words: Sequence[str]
    hosts: tuple[SshHost, ...]
    user: str | None
    ssh_config: Path | None
    interface: str | None = None

    def connection(self, host: SshHost, shared: Path) -> list[str]:
        """The ssh command that connects to one host."""
        return connection(host, shared, user=self.user, config=self.ssh_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The open connections: one per host for its node, and a second one to the head for the training."""

    nodes: tuple[SshSession, ...]
    training: SshSession

    @property
    def all(self) -> tuple[SshSession, ...]:
        """All connections, the training's last."""
        return (*self.nodes, self.training)


async def run_on_hosts(launch: Launch) -> int:
    """Train on all hosts. Returns the training's exit code, or 130 after a stop signal. SIGUSR1 is forwarded to the
    training.

    Raises, before anything is started, a group of `HostError` for hosts that cannot be used, and `PlacementError` if
    all hosts together are too small. Raises `NodeFailed` later, when a host is lost.
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
    """Connect to every host. On exit the training is ended first and the nodes after it, in every case."""
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
    """Send the commands once every host is ready, and wait for the training to end."""
    stopping = asyncio.ensure_future(stop.wait())
    readying = asyncio.ensure_future(all_ready(started.all))
    await asyncio.wait((readying, stopping), return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        readying.cancel()
        return 130
    check_resources(roles_of(launch.recipe), readying.result()[:-1])
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
    """The resources of every host. Raises a group of `HostError` with all unusable hosts."""
    answers = await asyncio.gather(*(ready_or_not(session) for session in sessions))
    if refused := [answer for answer in answers if isinstance(answer, HostError)]:
        raise ExceptionGroup("hosts that cannot be used", unique(refused))
    return [answer for answer in answers if isinstance(answer, Resources)]


async def ready_or_not(session: SshSession) -> Resources | HostError:
    """The host's resources, or the error that makes it unusable."""
    try:
        return await session.ready()
    except HostError as error:
        return error


def unique(errors: Sequence[HostError]) -> list[HostError]:
    """One error per host: the two connections to the head fail in the same way."""
    return list({error.host: error for error in errors}.values())


async def first_end(started: Started, stopping: asyncio.Future[Any]) -> int:
    """The training's exit code. Raises `NodeFailed` when a node ends before the training."""
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
    """End what runs on these connections, and warn about hosts that did not confirm it."""
    ended = await asyncio.gather(*(session.end(END_SECONDS) for session in sessions), return_exceptions=True)
    for late in ended:
        if isinstance(late, DeadlinePassed):
            complain(f"warning: {late}; it ends by itself after its heartbeat times out")


def line_logger(host: SshHost, log: TextIO) -> Print:
    """A function that writes lines to the log, each after the host's name."""

    def tell(line: str) -> None:
        log.write(f"{host.name} {line}\n")

    return tell


def print_line(line: str) -> None:
    """Print a line on standard output, with control characters escaped."""
    print(escape_controls(line), flush=True)


def complain(line: str) -> None:
    """Print a line on standard error, with control characters escaped."""
    print(escape_controls(line), file=sys.stderr, flush=True)


def keep_log(shared: Path, run: Path) -> None:
    """Append the hosts' output to the run's logs. Without a run folder a log that is not empty stays where it is."""
    log = shared / HOSTS_LOG
    if (run / "logs").is_dir():
        with (run / "logs" / HOSTS_LOG).open("a") as kept:
            kept.write(log.read_text())
    elif log.stat().st_size:
        complain(f"what the hosts said is in {log}")
        return
    shutil.rmtree(shared, ignore_errors=True)
