"""Builds bubblewrap's command line: a read-only system, one writable folder, and no other processes or network."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from rlhf.sandbox.isolation import SYSTEM, Interpreter
from rlhf.sandbox.program import SandboxLimits
from rlhf.sandbox.run_request import Jail

FOLDER = "/program"
"""The run's folder: a tmpfs of the size in the limits. In a deeper one pytest fails, as it lists the folder above."""
LINKS = ("/tmp", "/dev/shm")
"""Links to the run's folder, except where the Python lies in a folder of that name."""
PACKAGE_ROOT = "/run/supervisor"
"""The mount of the supervisor's source."""
SUPERVISOR_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_KILL", "CAP_DAC_READ_SEARCH")
"""Capabilities of a supervisor that is root in the sandbox: to start the program as another user, to kill it and to
read its files."""


def bubblewrap_command(package_root: str, python: Interpreter, jail: Jail, limits: SandboxLimits) -> tuple[str, ...]:
    """Return `bwrap` with its arguments, to be followed by the supervisor's command. Root gets no user namespace: in
    one it would keep user id 0, which has no limit on processes; the program drops to the user id of its jail
    instead."""
    readable = [part for path in python.readable if path not in SYSTEM for part in _open_parts(path, jail)]
    links = [link for link in LINKS if not any(Path(path).is_relative_to(link) for path in readable)]
    mounts = [
        *_passable((*readable, *jail.devices, FOLDER)),
        *_each("--ro-bind-try", (*SYSTEM, *readable)),
        *_each("--dev-bind", jail.devices),
        *("--proc", "/proc"),
        *("--perms", "1777", "--size", str(limits.disk_bytes), "--tmpfs", FOLDER),
        *(word for link in links for word in ("--symlink", FOLDER, link)),
        *("--ro-bind", f"{package_root}/rlhf/__init__.py", f"{PACKAGE_ROOT}/rlhf/__init__.py"),
        *("--ro-bind", f"{package_root}/rlhf/sandbox", f"{PACKAGE_ROOT}/rlhf/sandbox"),
        *("--remount-ro", "/"),
    ]
    namespaces = _namespaces(privileged=jail.uid is not None)
    return (shutil.which("bwrap") or "bwrap", *namespaces, "--clearenv", *mounts, "--chdir", FOLDER, "--")


def _namespaces(*, privileged: bool) -> list[str]:
    common = ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    common += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if privileged:
        return [*common, *(word for name in SUPERVISOR_CAPABILITIES for word in ("--cap-add", name))]
    return ["--unshare-user", "--disable-userns", *common]


def _each(option: str, paths: Iterable[str]) -> list[str]:
    return [word for path in paths for word in (option, path, path)]


def _passable(paths: Iterable[str]) -> list[str]:
    """Return options that open the parent folders of `paths` to all users: as root, bubblewrap makes them for root
    only."""
    above = {str(folder) for path in paths for folder in Path(path).parents if len(folder.parts) > 1}
    return [word for folder in sorted(above) for word in ("--perms", "0755", "--dir", folder)]


def _open_parts(path: str, jail: Jail) -> list[str]:
    """Return `path`, or what it contains if it is a folder that the program's user may not enter: bubblewrap then makes
    the folder itself."""
    if jail.uid is None or not os.path.isdir(path) or os.stat(path).st_mode & stat.S_IXOTH:
        return [path]
    return [entry.path for entry in os.scandir(path)]
