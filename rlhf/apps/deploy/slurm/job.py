"""Describes a SLURM job: the recipe, the machines and the time limit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][\w.,@+-]*")
TIMES = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
UNWRITABLE = re.compile(r'[%"\\\n]')
"""Characters in a path that SLURM's options interpret."""
CONSTRAINT, GPUS = re.compile(r"[\w.,@+&|*()\[\]:!-]+"), re.compile(r"(?:gpu:)?(?:([\w.-]*[A-Za-z][\w.-]*):)?(\d+)")
MEMORY, EXTRA = re.compile(r"\d+[KMGT]?"), re.compile(r"-(-[a-z][\w-]*|[A-Za-z]\b)[^\n]*")
APPTAINER = re.compile(r".+\.sif|(docker|oras|library)://.+")
IMAGE, MOUNT = re.compile(r"[\w./@:#+-]+"), re.compile(r"/[^,:\n]*(:/[^,:\n]*(:\w+)?)?")


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
    def parts(self) -> tuple[NodeGroup, ...]:
        """The job's groups of machines."""
        return (self.main, self.servers) if self.servers else (self.main,)

    @property
    def nodes(self) -> int:
        """Number of nodes in all groups."""
        return sum(part.nodes for part in self.parts)

    @property
    def logs(self) -> Path:
        """The folder of the job's logs."""
        return self.run_dir / "logs"


def check_job(job: SlurmJob) -> None:
    """Check for values that SLURM would misread, or accept and never run. Raises `UserError`."""
    words = {"--job-name": job.name, "--account": job.account, "--qos": job.qos, "--reservation": job.reservation}
    words |= {"--partition": job.main.partition, "--cpu-partition": job.servers.partition if job.servers else None}
    given = [
        (option, word, NAME, "must consist of letters, digits and any of _.,@+-") for option, word in words.items()
    ]
    given += [("--interface", job.interface, NAME, "is no name of an interface, such as ib0")]
    given += [("--constraint", job.main.constraint, CONSTRAINT, "is no expression of features, such as 'h100&ib'")]
    given += [("--mem", job.main.memory, MEMORY, "is no amount of memory, such as 64G, or 0 for all of a machine")]
    given += [("--extra", line, EXTRA, "is no option of sbatch, such as --comment=mine") for line in job.extra]
    if job.container:
        given += [("--container", job.container.image, IMAGE, "is neither an image of Apptainer nor one of pyxis")]
        given += [
            ("--container-mounts", one, MOUNT, "must be /FOLDER or /FOLDER:/THERE") for one in job.container.mounts
        ]
    for option, word, pattern, problem in given:
        if word is not None and not pattern.fullmatch(word):
            raise UserError(f"{option} {word!r} {problem}")
    for path in (job.run_dir, job.folder):
        if UNWRITABLE.search(str(path)):
            raise UserError(f'{str(path)!r} has a character that SLURM reads as a pattern; use a path without % " \\')
        if job.container and re.search("[,:]", str(path)):
            raise UserError(f"{str(path)!r} cannot be mounted in an image; use a path without , and :")
    if job.time is not None and seconds_of(job.time) <= job.warn_seconds:
        raise UserError(
            f"--time {job.time} is not longer than the {job.warn_seconds} s that the run is given to save; raise it or "
            "lower --signal"
        )


def gpus_of(text: str) -> tuple[str | None, int]:
    """Return the type and the number of GPUs in `8` or `h100:8`. Raises `UserError`."""
    if not (found := GPUS.fullmatch(text)):
        raise UserError(f"--gpus-per-node {text!r} is no number of GPUs; write 8, or h100:8 for GPUs of that type")
    return found[1], int(found[2])


def seconds_of(text: str) -> int:
    """Return the seconds of a time limit: `90`, `90:00`, `1:30:00`, `2-12`, `2-12:30`, `2-12:30:00`. Raises `UserError`
    for times that SLURM cannot parse, and for zero, which means no limit."""
    if not TIMES.fullmatch(text.strip()):
        raise UserError(f"--time {text!r} is no time; write minutes, hours:minutes:seconds or days-hours")
    days, with_days, clock = text.strip().rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not with_days and len(parts) < 3:
        parts = [0, *parts]  # minutes, or minutes:seconds
    hours, minutes, rest = [*parts, 0, 0][:3]
    seconds = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest
    if seconds == 0:
        raise UserError(f"--time {text!r} is zero; give the job at least the time to start, 30 (minutes) for instance")
    return seconds
