"""Control groups: found where this process may make them, entered before the code starts, gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf.sandbox import groups
from rlhf.sandbox.groups import RUN, NoGroups, Parents, cgroup_folder, find_parents, mounted, own_groups
from rlhf.sandbox.limits import MIB, SandboxLimits

V1 = "9:name=systemd:/\n8:pids:/\n4:memory:/jobs/one\n2:cpu,cpuacct:/\n0::/\n"
MOUNTS = (
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    "42 31 0:39 / /tmp rw - tmpfs tmpfs rw\n"
)


def test_the_own_groups_and_where_they_are_seen_are_read() -> None:
    own, mounts = own_groups(V1), mounted(MOUNTS)
    assert (own["memory"], own["cpuacct"], own[""]) == ("/jobs/one", "/", "/")
    assert mounts["cpuacct"] == ("/sys/fs/cgroup/cpu", "/")
    assert cgroup_folder("memory", own, mounts)[0] == Path("/sys/fs/cgroup/memory/jobs/one")
    assert cgroup_folder("", own, mounts)[0] == Path("/sys/fs/cgroup/unified")


def test_a_group_that_is_seen_from_below_is_found_and_one_outside_is_not() -> None:
    mounts = mounted("41 31 0:38 /slice/pod /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n")
    assert cgroup_folder("", {"": "/slice/pod/a"}, mounts)[0] == Path("/sys/fs/cgroup/a")
    for outside in ("/slice/other", "/../../else"):
        with pytest.raises(NoGroups, match="outside what is mounted"):
            cgroup_folder("", {"": outside}, mounts)
    with pytest.raises(NoGroups, match="no cgroup v2"):
        cgroup_folder("", {"memory": "/"}, mounts)


def tree(tmp_path: Path, controllers: dict[str, str]) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """A likeness of cgroup v2 with our process in `user/app`; folder → controllers that it hands down."""
    for name in ("", "user", "user/app"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.type").touch()
        (folder / "cgroup.controllers").write_text("cpu io memory pids\n")
        (folder / "cgroup.subtree_control").write_text(controllers.get(name, "") + "\n")
    return {"": "/user/app"}, {"": (str(tmp_path), "/")}


def test_groups_are_made_in_the_nearest_group_that_hands_both_controllers_down(tmp_path: Path) -> None:
    own, mounts = tree(tmp_path, {"": "cpu memory pids", "user": "memory pids"})
    assert groups._second(own, mounts) == Parents(version=2, folders=(str(tmp_path / "user"),))
    (tmp_path / "user" / "cgroup.subtree_control").write_text("cpu\n")
    assert groups._second(own, mounts) == Parents(version=2, folders=(str(tmp_path),), shares=True)


def test_a_group_of_our_own_hands_down_once_its_processes_have_moved(tmp_path: Path) -> None:
    own, mounts = tree(tmp_path, {})
    (tmp_path / "user" / "app" / "cgroup.procs").write_text("0\n")  # of another namespace: nobody that could be moved
    assert groups._second(own, mounts).folders == (str(tmp_path / "user" / "app"),)
    assert (tmp_path / "user" / "app" / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (tmp_path / "user" / "app" / groups.SERVICE).is_dir()


def test_controllers_that_are_not_there_are_named(tmp_path: Path) -> None:
    own, mounts = tree(tmp_path, {})
    (tmp_path / "user" / "app" / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(NoGroups, match="no controllers of memory and processes"):
        groups._second(own, mounts)


def test_both_dialects_bound_memory_with_swap_and_processes() -> None:
    limits = SandboxLimits(memory_bytes=64 * MIB, processes=7)
    assert [setting[:2] for setting in groups._settings(2, limits)] == [
        ("memory.max", "67108864"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", "7"),
        ("cpu.weight", "100"),
    ]
    assert [setting[:2] for setting in groups._settings(1, limits)] == [
        ("memory.limit_in_bytes", "67108864"),
        ("memory.memsw.limit_in_bytes", "67108864"),
        ("pids.max", "7"),
        ("cpu.shares", "1024"),
    ]


def test_each_run_has_a_share_of_the_processor_where_there_is_a_controller_for_it(tmp_path: Path) -> None:
    own, mounts = tree(tmp_path, {"user": "cpu memory pids"})
    assert groups._second(own, mounts) == Parents(version=2, folders=(str(tmp_path / "user"),), shares=True)
    (tmp_path / "user" / "cgroup.controllers").write_text("memory pids\n")
    (tmp_path / "user" / "cgroup.subtree_control").write_text("memory pids\n")
    assert groups._second(own, mounts) == Parents(version=2, folders=(str(tmp_path / "user"),))


@pytest.mark.parametrize("names", ["cpu", "cpu,cpuacct", "none"])
def test_the_first_dialect_has_a_folder_for_the_processor_where_it_may_be_written(tmp_path: Path, names: str) -> None:
    own, mounts = own_groups(V1.replace("/jobs/one", "/")), {}
    for name in ("memory", "pids", names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
        mounts |= {one: (str(tmp_path / name), "/") for one in name.split(",")}
    wanted = [name for name in ("memory", "pids", names) if name != "none"]
    folders = tuple(str(tmp_path / name) for name in wanted)
    assert groups._first(own, mounts) == Parents(version=1, folders=folders, shares=names != "none")


def parents() -> Parents | None:
    """Where this machine lets this user make groups."""
    try:
        return find_parents()
    except NoGroups:
        return None


ENTER = "import os, sys, time; [os.write(int(n), b'0') for n in sys.argv[1:]]; print('in', flush=True); time.sleep(60)"


def test_what_has_entered_a_group_ends_with_it_and_the_group_is_gone() -> None:
    if (where := parents()) is None:
        return
    with groups.group(where, SandboxLimits()) as group:
        names = list(map(str, group.entrances))
        inside = subprocess.Popen(
            [sys.executable, "-c", ENTER, *names], pass_fds=group.entrances, stdout=subprocess.PIPE
        )
        assert inside.stdout
        assert inside.stdout.readline() == b"in\n"
        made = [path for folder in where.folders for path in Path(folder).glob(f"{RUN}*") if _holds(path, inside.pid)]
        assert len(made) == len(where.folders)
    assert inside.wait(10) == -signal.SIGKILL
    inside.stdout.close()
    assert not any(path.exists() for path in made)


def test_a_group_whose_service_died_is_swept_and_one_whose_service_lives_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if (where := parents()) is None:
        return
    monkeypatch.setattr(groups, "NEW_SECONDS", -1.0)
    left = [Path(folder, f"{RUN}left-{os.getpid()}") for folder in where.folders]
    for folder in left:
        folder.mkdir()
    with groups.group(where, SandboxLimits()) as group:
        find_parents()
        assert not any(folder.exists() for folder in left)
        assert os.write(group.entrances[0], b"") == 0  # it is there


def _holds(folder: Path, process: int) -> bool:
    return str(process) in (folder / "cgroup.procs").read_text().split()


def test_groups_of_a_run_that_is_over_do_not_stay() -> None:
    if (where := parents()) is None:
        return
    began = time.monotonic()
    with groups.group(where, SandboxLimits()) as group:
        assert group.entrances
    assert time.monotonic() - began < 5
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(group.entrances[0], b"0")
