"""A SLURM of its own on this machine: a controller and two nodes, with own ports, key and folders. Needs root."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

NODES = ("n1", "n2")
CPUS = 2
START_SECONDS, STOP_SECONDS = 30, 20
REQUEUE_SECONDS = 5
"""How long a requeued job waits, and the shortest that SLURM takes: it is the lifetime of a credential, 120 s elsewhere."""
DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_seconds}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
# No cgroups: a process that leaves its session is nobody's, as on the worst of clusters.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
JobRequeue=1
ReturnToService=2
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# Nodes have the cores that are written here, whatever the machine has.
SlurmdParameters=config_overrides
{nodes}
PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class PrivateSlurm:
    """A running cluster. Its commands find it by `SLURM_CONF`."""

    folder: Path

    @property
    def configuration(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its commands: this process's, without what another SLURM may have left in it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
        return kept | {"SLURM_CONF": str(self.configuration)}

    def run(self, *command: str, seconds: float = 60) -> str:
        """What the command prints. Fails with its words when it fails."""
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """All that carry this cluster's configuration: daemons, and whatever its jobs started."""
        return with_variable("SLURM_CONF", str(self.configuration))


@contextmanager
def private_slurm() -> Iterator[PrivateSlurm]:
    """Start munged, slurmctld and the nodes; at the end cancel the jobs and leave no process and no file."""
    missing = [daemon for daemon in DAEMONS if shutil.which(daemon) is None]
    assert not missing, f"{' and '.join(missing)} not found: make test-slurm installs them"
    assert os.geteuid() == 0, "slurmd starts jobs as their users, which takes root"
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)  # munged wants a socket that everyone reaches
    slurm = PrivateSlurm(folder)
    try:
        with ExitStack() as daemons:
            _start(slurm, daemons)
            try:
                yield slurm
            finally:
                _cancel_all(slurm)
    finally:
        for left in slurm.processes():
            left.kill()
        shutil.rmtree(folder)


def with_variable(name: str, value: str) -> list[psutil.Process]:
    """Living processes of this machine in whose environment the variable has this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [process for process in found if process.pid != os.getpid()]


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _start(slurm: PrivateSlurm, daemons: ExitStack) -> None:
    _write_configuration(slurm)
    folder = slurm.folder
    key = folder / "munge.key"
    key.touch(0o400)
    key.write_bytes(secrets.token_bytes(128))
    files = (f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in ("socket", "key-file", "pid-file"))
    more = (f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log")
    daemons.enter_context(_daemon(slurm, "munged", "munged", "--foreground", *files, *more))
    assert until((folder / "munge.socket").exists, START_SECONDS), _logs(folder)
    daemons.enter_context(_daemon(slurm, "slurmctld", "slurmctld", "-D", "-c"))
    for node in NODES:
        daemons.enter_context(_daemon(slurm, node, "slurmd", "-D", "-N", node))
    assert until(lambda: _idle(slurm) == len(NODES), START_SECONDS), _logs(folder)


def _write_configuration(slurm: PrivateSlurm) -> None:
    host = socket.gethostname().partition(".")[0]
    controller_port, *ports = free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} State=UNKNOWN"
        for name, port in zip(NODES, ports, strict=True)
    )
    for name in ("state", *NODES):
        (slurm.folder / name).mkdir()
    slurm.configuration.write_text(
        CONFIGURATION.format(
            host=host, controller_port=controller_port, folder=slurm.folder, nodes=nodes, names=",".join(NODES),
            requeue_seconds=REQUEUE_SECONDS,
        )
    )  # fmt: skip


@contextmanager
def _daemon(slurm: PrivateSlurm, name: str, *command: str) -> Iterator[None]:
    """One daemon in the foreground, its output in a log, ended with the block. It goes when this process dies too."""
    with (slurm.folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command], env=slurm.variables, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _idle(slurm: PrivateSlurm) -> int:
    asked = subprocess.run(
        ["sinfo", "-h", "-t", "idle", "-o", "%D"], env=slurm.variables, capture_output=True, text=True, timeout=60
    )
    return int(asked.stdout.strip() or 0)


def _cancel_all(slurm: PrivateSlurm) -> None:
    slurm.run("scancel", "--user", "root")
    until(lambda: not slurm.run("squeue", "-h").strip(), STOP_SECONDS)


def _logs(folder: Path) -> str:
    return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in sorted(folder.glob("*.log")))
