"""What a launch would do is printed without a connection, and what cannot be launched is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.deploy.ssh.launch import keep_log
from rlhf.deploy.ssh.remote_command import variables
from tests.warm.client import Ended
from tests.warm.command_line import rlhf

QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"


def launch(folder: Path, hosts: str, *words: str) -> Ended:
    (folder / "hosts.txt").write_text(hosts)
    return rlhf("launch", QUICKSTART, "--hosts", "hosts.txt", *words, folder=folder)


def test_a_dry_run_prints_every_command_after_its_host(tmp_path: Path) -> None:
    words = ("seed=3", "--dry-run", "--user", "ann", "--resume", "--gpus-per-host", "2", "--interface", "ib0")
    ended = launch(tmp_path, "node1\nnode2 cpus=8 gpus=4\n", *words)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["node1", "node1", "node2", "node2", "node1"]
    assert all(option in lines[0] for option in ("-oBatchMode=yes", "-oConnectTimeout=10", "-l ann", "-- node1 "))
    assert lines[1].endswith("rendezvous.json' --gpus 2 --head --interface ib0")
    assert lines[3].endswith("rendezvous.json' --cpus 8 --gpus 4")
    assert " seed=3 --resume cluster.nodes=2 --rendezvous " in lines[4]
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.txt"]


@pytest.mark.parametrize(
    ("hosts", "words", "told"),
    [
        ("", (), "names no host"),
        ("localhost\n", ("trainer.update=1",), "unknown key 'trainer.update'"),
        ("localhost cpus=1\n", ("rollout.engines=9",), "9 engine"),
    ],
)
def test_what_cannot_be_launched_is_one_line(tmp_path: Path, hosts: str, words: tuple[str, ...], told: str) -> None:
    ended = launch(tmp_path, hosts, *words)
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line
    assert not list(tmp_path.glob("runs/*")), "nothing is left of it"


def test_a_machine_without_ssh_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = launch(tmp_path, "node1\nnode2\n")
    assert (ended.returncode, ended.stderr) == (
        2, "error: node1: this machine has no ssh to reach it; install openssh-client\n"
    )  # fmt: skip


def test_every_launch_has_a_secret_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/here/only")
    first, second = variables("run"), variables("run")
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
    assert first["RLHF_RUN_ID"] != second["RLHF_RUN_ID"]
    assert first["NCCL_DEBUG"] == "INFO"
    assert "SSH_AUTH_SOCK" not in first


def test_the_hosts_lines_go_to_the_run_or_stay_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared, run = tmp_path / ".run-launch", tmp_path / "run"
    shared.mkdir()
    (shared / "hosts.log").write_text("node1 hello\n")
    keep_log(shared, run)
    assert str(shared / "hosts.log") in capsys.readouterr().err
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "hosts.log").write_text("node1 before\n")
    keep_log(shared, run)
    assert (run / "logs" / "hosts.log").read_text() == "node1 before\nnode1 hello\n"
    assert not shared.exists()
