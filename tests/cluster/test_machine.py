"""The cores that control groups leave to a process, read from folders like the kernel's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlhf.cluster.machine import cpu_quota


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/\n", {"cpu.max": "max 100000"}, math.inf),
        ("0::/\n", {"cpu.max": "350000 100000"}, 3.5),
        ("0::/job/step\n", {"job/cpu.max": "200000 100000", "job/step/cpu.max": "400000 100000"}, 2.0),
        (
            "4:memory:/\n1:cpu,cpuacct:/pod\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("1:cpu:/pod\n", {"cpu/pod/cpu.cfs_quota_us": "-1", "cpu/pod/cpu.cfs_period_us": "100000"}, math.inf),
    ],
)
def test_the_smallest_quota_of_the_groups_above_a_process_counts(
    tmp_path: Path, own: str, files: dict[str, str], cores: float
) -> None:
    for name, text in {
        "proc/self/cgroup": own,
        **{f"sys/fs/cgroup/{file}": text for file, text in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == cores
