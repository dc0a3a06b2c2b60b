"""Control groups: found where this process may make them, entered before the code starts, gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf.sandbox import groups
from rlhf.sandbox.groups import RUN, GroupParent, control_group, delegating_group, find_group_parent, own_group
from rlhf.sandbox.program import MIB, SandboxLimits

MOUNTS = (
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 {root} /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)


@pytest.mark.parametrize(
    ("own", "root", "folder"),
    [("/jobs/one", "/", "/sys/fs/cgroup/unified/jobs/one"), ("/slice/pod/a", "/slice/pod", "/sys/fs/cgroup/unified/a")],
)
def test_the_own_group_is_found_below_what_is_mounted(own: str, root: str, folder: str) -> None:
    found = own_group(f"4:memory:/elsewhere\n0::{own}\n", MOUNTS.format(root=root))
    assert found == (Path(folder), Path("/sys/fs/cgroup/unified"))


@pytest.mark.parametrize(
    ("own", "mounts", "reason"),
    [
        ("0::/slice/other", MOUNTS.format(root="/slice/pod"), "outside the mount"),
        ("0::/../../else", MOUNTS.format(root="/slice/pod"), "outside the mount"),
        ("4:memory:/", MOUNTS.format(root="/"), "it is not mounted"),
        ("0::/", MOUNTS.splitlines()[0], "it is not mounted"),
    ],
)
def test_a_group_that_cannot_be_seen_is_no_group(own: str, mounts: str, reason: str) -> None:
    with pytest.raises(match=reason):
        own_group(own, mounts)


def tree(top: Path, controllers: dict[str, str]) -> Path:
    """A likeness of cgroup v2 with our process in `user/app`, which is returned; folder → controllers that it
    delegates."""
    for name in ("", "user", "user/app"):
        folder = top / name
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.type").touch()
        (folder / "cgroup.controllers").write_text("cpu io memory pids\n")
        (folder / "cgroup.subtree_control").write_text(controllers.get(name, "") + "\n")
    return top / "user" / "app"


def test_the_nearest_group_that_delegates_both_controllers_is_taken(tmp_path: Path) -> None:
    here = tree(tmp_path, {"": "cpu memory pids", "user": "memory pids"})
    assert delegating_group(here, tmp_path).folder == str(tmp_path / "user")
    (tmp_path / "user" / "cgroup.subtree_control").write_text("cpu\n")
    assert delegating_group(here, tmp_path) == GroupParent(folder=str(tmp_path), shares=True)
    (tmp_path / "user" / "cgroup.subtree_control").write_text("memory pids\n")
    (tmp_path / "user" / "cgroup.controllers").write_text("memory pids\n")
    assert delegating_group(here, tmp_path) == GroupParent(folder=str(tmp_path / "user"), shares=False)


def test_our_own_group_delegates_after_its_processes_have_moved(tmp_path: Path) -> None:
    here = tree(tmp_path, {})
    (here / "cgroup.procs").write_text("0\n123\n")  # 0: a process of another namespace, which cannot be moved
    assert delegating_group(here, tmp_path).folder == str(here)
    assert (here / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (here / groups.SERVICE / "cgroup.procs").read_text() == "123"


def test_missing_controllers_are_named(tmp_path: Path) -> None:
    here = tree(tmp_path, {})
    (here / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(match="lacks the memory and process controllers"):
        delegating_group(here, tmp_path)


def test_memory_with_swap_and_processes_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "memory.swap.max").touch()
    groups.set_limits(tmp_path, SandboxLimits(memory_bytes=64 * MIB, processes=7))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "memory.max": "67108864",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "7",
    }


ENTER = "import os, sys, time; os.write(int(sys.argv[1]), b'0'); print('in', flush=True); time.sleep(60)"


def test_a_process_that_entered_a_group_ends_with_it_and_dead_groups_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only on a machine where this user may make groups."""
    parent, reason = find_group_parent()
    assert bool(parent) != bool(reason)
    if parent is None:
        return
    left = Path(parent.folder, f"{RUN}left-{os.getpid()}")
    left.mkdir()
    with control_group(parent, SandboxLimits()) as group:
        command = [sys.executable, "-c", ENTER, str(group.entrance)]
        inside = subprocess.Popen(command, pass_fds=(group.entrance,), stdout=subprocess.PIPE)
        assert inside.stdout
        assert inside.stdout.readline() == b"in\n"
        assert str(inside.pid) in Path(group.folder, "cgroup.procs").read_text().split()
        monkeypatch.setattr(groups, "OLD_SECONDS", -1.0)
        find_group_parent()
        assert (left.exists(), Path(group.folder).exists()) == (False, True)
    assert inside.wait(10) == -signal.SIGKILL
    inside.stdout.close()
    assert not Path(group.folder).exists()
