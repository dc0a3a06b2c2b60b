"""A hosts file says who takes part and with what; what it does not mean is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.deploy.ssh.hosts_file import SshHost, read_hosts
from rlhf.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    file = folder / "hosts.txt"
    file.write_text(text)
    return file


def test_hosts_come_in_their_order_with_what_they_give(tmp_path: Path) -> None:
    text = "# the head first\nnode1 cpus=16 gpus=8\n\nann@node2.local  # all it has\n10.0.0.3 gpus=0\n"
    assert read_hosts(written(tmp_path, text)) == (
        SshHost(name="node1", cpus=16, gpus=8),
        SshHost(name="ann@node2.local"),
        SshHost(name="10.0.0.3", gpus=0),
    )


def test_amounts_for_all_hosts_hold_where_a_line_has_none(tmp_path: Path) -> None:
    hosts = read_hosts(written(tmp_path, "node1 cpus=16\nnode2\n"), cpus=4, gpus=2)
    assert [(host.cpus, host.gpus) for host in hosts] == [(16, 2), (4, 2)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# nobody\n", "names no host"),
        ("node1\n-oProxyCommand=x\n", r":2: '-oProxyCommand=x' is no host"),
        ("node1 slots=4\n", r":1: 'slots=4' is not understood"),
        ("node1 cpus=0\n", r":1: 'cpus=0' is not understood"),
        ("node1 cpus=many\n", r":1: 'cpus=many' is not understood"),
        ("node1\nnode1\n", "names node1 twice"),
    ],
)
def test_what_it_does_not_mean_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_hosts(written(tmp_path, text))
