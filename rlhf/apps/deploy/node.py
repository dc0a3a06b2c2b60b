"""Runs one machine's part of a Ray cluster in the foreground: the head, or a worker node that joins it."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rlhf.apps.deploy.ray_start import RayProcess, node_name
from rlhf.apps.deploy.rendezvous import HeadAddress, is_there, publish, read_head_address, wait_for
from rlhf.cluster.interfaces import ELSEWHERE, Interface, address_of, interface_toward, only_interface
from rlhf.cluster.ray_connection import PRIVATE_RAY, check_answers
from rlhf.errors import NodeFailed, PlacementError, RendezvousError, RlhfError, UserError
from rlhf.untrusted_text import escape_to_line

LOOK_SECONDS = 0.5
KNOCK_SECONDS = 5.0
REFUSALS = 2
"""Number of consecutive refused connections after which the head counts as ended."""
SILENCE_SECONDS = 20.0
"""Seconds without any answer after which the head counts as unreachable."""
TIDY_SECONDS = 5.0
"""Seconds until the removal of the head's file is visible in a folder shared over a network."""
NOTE = ".told"
"""Suffix, in place of the rendezvous file's, of the file that appears when the head is asked to end."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of a node. `interface` None means the interface of the route to the head; for the head, that of the
    default route. `timeout_seconds` is the deadline of each wait at the start. `grace_seconds` is the time that a
    training has to save and to leave the cluster after SIGTERM, which often reaches all processes at once."""

    run: str
    head: bool
    rendezvous: Path
    interface: str | None
    cpus: int
    gpus: int
    timeout_seconds: float
    grace_seconds: float


class StopSignals:
    """Record the signals that end this process. A training on the node gets a grace period to leave first."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._asked_at: float | None = None
        self._noted = False
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: self._ask())

    def is_asked(self) -> bool:
        """Whether a stop signal has arrived."""
        return self._asked_at is not None

    def is_due(self) -> bool:
        """Whether a stop signal has arrived and the grace period is over."""
        return self._asked_at is not None and time.monotonic() - self._asked_at >= self._grace_seconds

    def pass_on(self, note: Path) -> None:
        """Leave an empty file at the first stop signal: the job's script, which did not get it, finds the file."""
        if self.is_asked() and not self._noted:
            self._noted = True
            note.touch()
            print_node_line(f"was asked to end, and gives the training {self._grace_seconds:g} s to save and leave")

    def _ask(self) -> None:
        self._asked_at = self._asked_at or time.monotonic()


def run_node(settings: NodeSettings) -> int:
    """Run a node until SIGTERM or the end of the cluster (exit code 0), or until a failure, which it prints."""
    os.environ.update(PRIVATE_RAY)
    ending = StopSignals(settings.grace_seconds)
    try:
        head(settings, ending) if settings.head else worker(settings, ending)
    except RlhfError as error:
        print_node_line(f"error: {error}")
        return error.exit_code
    print_node_line("ends")
    return 0


def head(settings: NodeSettings, ending: StopSignals) -> None:
    """Start a head, publish its address, and run while the rendezvous file exists: removing it ends the cluster."""
    note = settings.rendezvous.with_suffix(NOTE)
    own = own_interface(settings, ELSEWHERE)
    ray = RayProcess(None, address=own.address, cpus=settings.cpus, gpus=settings.gpus)
    address = ray.until_up(settings.timeout_seconds, ending.is_asked)
    if address is None:
        return
    publish(settings.rendezvous, HeadAddress(run=settings.run, address=address, interface=own.name, host=node_name()))
    print_node_line(f"is the head of run {settings.run} at {address}, {describe_node(settings, own)}")
    while is_there(settings.rendezvous) and not ending.is_due():
        ray.check()
        ending.pass_on(note)
        time.sleep(LOOK_SECONDS)
    for file in (settings.rendezvous, note):
        file.unlink(missing_ok=True)


def worker(settings: NodeSettings, ending: StopSignals) -> None:
    """Find the head, join it, and run until the cluster ends. Raises `NodeFailed` when the head dies."""
    found = wait_for(settings.rendezvous, settings.run, settings.timeout_seconds, ending.is_asked)
    if found is None:
        return
    own = own_interface(settings, found.address.rpartition(":")[0])
    # A wrong token is refused here at once; Ray's own start reports it only after 20 s.
    check_answers(found.address, settings.timeout_seconds)
    ray = RayProcess(found.address, address=own.address, cpus=settings.cpus, gpus=settings.gpus)
    watch = HeadWatch(found.address)
    if ray.until_up(settings.timeout_seconds, lambda: ending.is_asked() or watch.gone() != ""):
        print_node_line(
            f"joined {found.host}, the head of run {found.run}, at {found.address}, {describe_node(settings, own)}"
        )
    while not ending.is_due():
        if how := watch.gone():
            if ended_cleanly(settings.rendezvous, found):
                return
            raise NodeFailed(f"the head on {found.host} ({found.address}) died: {how}")
        ray.check()
        time.sleep(LOOK_SECONDS)


def print_node_line(text: str) -> None:
    """Print one line: time (UTC), host, text. The logs of many nodes are read together, in order of time."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    print(f"{now} {node_name()} {escape_to_line(text)}", flush=True)


def own_interface(settings: NodeSettings, there: str) -> Interface:
    """Return the named interface, or that of the route to the host `there`. Without a route it is the machine's only
    one. Raises `UserError`."""
    if settings.interface is None:
        try:
            return interface_toward(there)
        except PlacementError:
            pass
        try:
            return only_interface()
        except PlacementError as error:
            raise UserError(f"{error}; choose one with --interface") from None
    try:
        return Interface(name=settings.interface, address=address_of(settings.interface))
    except PlacementError:
        raise UserError(f"--interface {settings.interface!r} is not on this machine, or has no address") from None


def describe_node(settings: NodeSettings, own: Interface) -> str:
    """Describe this node's interface, cores and GPUs, for the log."""
    return f"interface {own.name} ({own.address}), {settings.cpus} cores, {settings.gpus} GPUs"


class HeadWatch:
    """Checks the head by TCP connections. `gone` says how it was lost; it is empty while the head runs."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._head = (host, int(port))
        self._refused = 0
        self._answered_at = time.monotonic()
        self._gone = ""

    def gone(self) -> str:
        """Connect once, unless the head is already known to be lost."""
        self._gone = self._gone or self._knock()
        return self._gone

    def _knock(self) -> str:
        """Connect: a refusal is an answer of the head's machine, but no answer may be a network failure."""
        try:
            socket.create_connection(self._head, timeout=KNOCK_SECONDS).close()
        except ConnectionRefusedError:
            self._refused += 1
            return "no process listens there any more" if self._refused >= REFUSALS else ""
        except OSError:
            silent = time.monotonic() - self._answered_at
            return f"no answer for {silent:.0f} s" if silent > SILENCE_SECONDS else ""
        self._refused, self._answered_at = 0, time.monotonic()
        return ""


def ended_cleanly(path: Path, joined: HeadAddress) -> bool:
    """Whether the head removed its rendezvous file, or another head of the run has written a new one."""
    deadline = time.monotonic() + TIDY_SECONDS
    while time.monotonic() < deadline:
        try:
            if read_head_address(path, joined.run) != joined:
                return True
        except RendezvousError:
            return True
        time.sleep(0.2)
    return False
