"""A SLURM of its own on this machine: a controller and two nodes, with own ports, key and folders. Needs root."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.slurm.configuration import GPUS, NODES, configuration
from tests.slurm.processes import kill_all, until, with_variable

START_SECONDS, STOP_SECONDS = 30, 20
DAEMONS = ("munged", "slurmctld", "slurmd")


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
        kill_all(slurm.processes())
        shutil.rmtree(folder)


def _start(slurm: PrivateSlurm, daemons: ExitStack) -> None:
    folder = slurm.folder
    for name in ("state", *NODES):
        (folder / name).mkdir()
    slurm.configuration.write_text(configuration(folder))
    (folder / "gres.conf").write_text(GPUS)
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


@contextmanager
def _daemon(slurm: PrivateSlurm, name: str, *command: str) -> Iterator[None]:
    """One daemon in the foreground, its output in a log, ended with the block. It goes when this process dies too, but
    not by a Ctrl-C: its jobs are to be cancelled first."""
    words = ["setpriv", "--pdeathsig", "TERM", *command]
    with (slurm.folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(words, env=slurm.variables, stdout=log, stderr=log, start_new_session=True)
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
