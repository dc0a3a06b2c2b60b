"""Restricts a process before it executes the program: control group, resources, user ids, files and system calls."""

from __future__ import annotations

import ctypes
import math
import os
import resource

from rlhf.sandbox import landlock, seccomp
from rlhf.sandbox.program import SandboxLimits
from rlhf.sandbox.run_request import Jail

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38


def confine(jail: Jail, limits: SandboxLimits) -> None:
    """Apply the jail's restrictions to this process; they cannot be removed. Raises `OSError`; then the program must
    not run."""
    if jail.entrance is not None:
        os.write(jail.entrance, b"0")
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 1)  # the supervisor is not dumpable, and such a process may not write to its own /proc
    os.chdir(jail.folder)
    os.umask(0o077)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # the first process to be killed if the machine is short of memory
    _limit_resources(limits, jail.uid)
    libc.prctl(PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))
    if jail.landlock:
        landlock.restrict(jail.folder, jail.readable, jail.devices)
    if jail.uid is not None:
        os.setgroups([])
        os.setresgid(jail.uid, jail.uid, jail.uid)
        os.setresuid(jail.uid, jail.uid, jail.uid)
    if jail.filtered:
        seccomp.install(jail)


def _limit_resources(limits: SandboxLimits, uid: int | None) -> None:
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_NPROC: limits.processes + (_others() if uid is None else 0),
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CPU: math.ceil(limits.wall_seconds) + 1,
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
    """Count the processes and threads that this user has already: the kernel's limit includes them."""
    user, count = os.getuid(), 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                count += len(os.listdir(f"/proc/{process}/task"))
        except OSError:
            continue  # the process has ended
    return count
