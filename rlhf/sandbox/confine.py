"""What a process gives up before it becomes the code: resources, other users' rights, files, system calls."""

from __future__ import annotations

import ctypes
import math
import os
import resource

from rlhf.sandbox import landlock, seccomp
from rlhf.sandbox.limits import Limits
from rlhf.sandbox.orders import Cage

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38


def confine(cage: Cage, limits: Limits) -> None:
    """Close the cage around this process, for good. Raises `OSError`, and then nothing may be run."""
    for entrance in cage.entrances:
        os.write(entrance, b"0")
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 1)  # the warden is not, and then a process may not touch its own /proc
    os.chdir(cage.folder)
    os.umask(0o077)
    _die_first_of_memory()
    _take_only(limits, cage.uid)
    libc.prctl(PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))
    if cage.landlock:
        landlock.restrict(cage.folder, cage.readable, cage.devices)
    if cage.uid is not None:
        os.setgroups([])
        os.setresgid(cage.uid, cage.uid, cage.uid)
        real = cage.uid if cage.second_uid is None else cage.second_uid
        os.setresuid(real, cage.uid, cage.uid)
    if cage.filtered:
        known = landlock.version() if cage.landlock else 0
        seccomp.install(
            files_outside=not cage.alone,
            others_outside=cage.uid is None and not cage.alone and known < landlock.SCOPES_SINCE,
            truncate_covered=known >= landlock.TRUNCATE_SINCE,
            counted=bool(cage.entrances),
            sized=cage.sized,
        )


def _take_only(limits: Limits, uid: int | None) -> None:
    processor_seconds = math.ceil(limits.wall_seconds) + 1
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_NPROC: limits.processes + (_others() if uid is None else 0),
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CPU: processor_seconds,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: limits.open_files,
    }
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))


def _others() -> int:
    """Processes and threads that this user has already: the kernel's limit counts them all."""
    user, count = os.getuid(), 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                count += len(os.listdir(f"/proc/{process}/task"))
        except OSError:
            continue  # it is gone
    return count


def _die_first_of_memory() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
