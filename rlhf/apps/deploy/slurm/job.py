"""Describes a SLURM job: the recipe, the machines and the time limit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf.errors import UserError

GPUS = re.compile(r"(?:gpu:)?(?:([\w.-]*[A-Za-z][\w.-]*):)?(\d+)")
APPTAINER = re.compile(r".+\.sif|(docker|oras|library)://.+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Machines of one kind. `cpus` None means whole nodes; `partition` None means the cluster's default. `gpu_type` is
    SLURM's name of the kind of GPU, and `constraint` its expression of features that the machines must have."""

    nodes: int
    gpus: int = 0
    gpu_type: str | None = None
    cpus: int | None = None
    memory: str | None = None
    partition: str | None = None
    constraint: str | None = None

    @property
    def gpu_words(self) -> str:
        """The GPUs of one machine, in SLURM's words: `h100:8`."""
        return f"{self.gpu_type}:{self.gpus}" if self.gpu_type else str(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An image that nodes and training run in, under Apptainer or under pyxis, and the host's folders in it, each
    `FOLDER` or `FOLDER:THERE`."""

    image: str
    mounts: Sequence[str] = ()

    @property
    def is_apptainer(self) -> bool:
        """Whether Apptainer runs it: a `.sif` file, or an address with a scheme. Pyxis runs all others."""
        return APPTAINER.fullmatch(self.image) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One run of a `recipe`, which is its text; `command` made the script. `main` are the machines of learners and
    engines, `servers` those without GPUs for environments and rewards. Relative paths start at `folder`; `rlhf` is the
    command on the nodes. SLURM signals the run to save `warn_seconds` before the time limit. All nodes, which import
    Ray from one file system at once, join within `join_seconds`. `extra` are options of sbatch for the main machines,
    `interface` is the head's. The recipe's workers reserve `used_gpus` and `used_cores`."""

    name: str
    recipe: str
    command: str
    run_dir: Path
    folder: Path
    rlhf: Path
    main: NodeGroup
    servers: NodeGroup | None = None
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    extra: Sequence[str] = ()
    container: Container | None = None
    interface: str | None = None
    warn_seconds: int = 300
    join_seconds: int = 300
    used_gpus: float = 0.0
    used_cores: float = 0.0

    @property
    def use(self) -> str:
        """What the run uses of what the job asks for: `uses 2 of 32 GPUs`; empty for whole nodes without GPUs."""
        if self.main.gpus or self.used_gpus:
            return f"uses {self.used_gpus:g} of {self.main.nodes * self.main.gpus} GPUs"
        return f"uses {self.used_cores:g} of {self.nodes * self.main.cpus} cores" if self.main.cpus else ""

    @property
    def nodes(self) -> int:
        """Number of nodes in all groups."""
        return self.main.nodes + (self.servers.nodes if self.servers else 0)

    @property
    def logs(self) -> Path:
        """The folder of the job's logs."""
        return self.run_dir / "logs"


def check_job(job: SlurmJob) -> None:
    """Check for letters that would end a line or a word of the script. SLURM itself refuses wrong values. Raises
    `UserError`."""
    words = {"--job-name": job.name, "--account": job.account, "--qos": job.qos, "--reservation": job.reservation}
    words |= {"--partition": job.main.partition, "--cpu-partition": job.servers.partition if job.servers else None}
    words |= {"--constraint": job.main.constraint, "--mem": job.main.memory, "--time": job.time}
    for option, word in words.items():
        if word is not None and not re.fullmatch(r"""[^\s"'\\]+""", word):
            raise UserError(f"{option} {word!r} must be one word without quotes")
    for line in job.extra:
        if not re.fullmatch(r"-[^\n]+", line):
            raise UserError(f"--extra {line!r} is no option of sbatch, such as --comment=mine")
    for path in (job.run_dir, job.folder):
        if re.search(r'[%"\\\n]', str(path)):
            raise UserError(f'{str(path)!r} has a character that SLURM reads as a pattern; use a path without % " \\')


def gpus_of(text: str) -> tuple[str | None, int]:
    """Return the type and the number of GPUs in `8` or `h100:8`. Raises `UserError`."""
    if not (found := GPUS.fullmatch(text)):
        raise UserError(f"--gpus-per-node {text!r} is no number of GPUs; write 8, or h100:8 for GPUs of that type")
    return found[1], int(found[2])
