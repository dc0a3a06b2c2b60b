"""The file by which nodes find their head, and only their own."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.apps.deploy.node import ended_cleanly
from rlhf.apps.deploy.rendezvous import HeadAddress, is_there, joining, publish, read_head_address, wait_for
from rlhf.errors import DeadlinePassed, RendezvousError, UserError

HEAD = HeadAddress(run="run-1", address="10.0.0.1:40123", interface="eth0", host="n1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "rendezvous.json"


def test_what_is_published_is_read(file: Path) -> None:
    assert read_head_address(file, "run-1") is None
    publish(file, HEAD)
    assert read_head_address(file, "run-1") == HEAD
    assert [path.name for path in file.parent.iterdir()] == [file.name], "nothing half written is left beside it"


def test_another_runs_file_is_refused_with_both_names(file: Path) -> None:
    publish(file, HEAD)
    with pytest.raises(RendezvousError, match=r"belongs to run 'run-1', and this is run 'run-2'"):
        wait_for(file, "run-2", seconds=30)


@pytest.mark.parametrize(("number", "words"), [(errno.ESTALE, None), (errno.EIO, "cannot read .*: Input/output error")])
def test_a_file_that_another_host_replaced_is_read_again_and_a_broken_disk_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str | None
) -> None:
    def fails(path: Path) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_text", fails)
    with pytest.raises(RendezvousError, match=words) if words else nullcontext():
        assert read_head_address(file, "run-1") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "run-1"}', '{"run": "run-1", "port": 1}'])
def test_a_damaged_file_is_refused(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(RendezvousError, match="is not a rendezvous file"):
        read_head_address(file, "run-1")


def test_waiting_ends_when_the_head_is_there(file: Path) -> None:
    threading.Timer(0.3, publish, (file, HEAD)).start()
    assert wait_for(file, "run-1", seconds=20) == HEAD


def test_waiting_has_a_deadline_and_names_what_did_not_come(file: Path) -> None:
    with pytest.raises(DeadlinePassed, match=rf"the head of run 'run-1', which is to write {file}"):
        wait_for(file, "run-1", seconds=0.2)


@pytest.mark.parametrize(
    ("after", "clean"),
    [(None, True), (replace(HEAD, address="10.0.0.2:40999"), True), (replace(HEAD, run="run-2"), True), (HEAD, False)],
)
def test_a_head_ended_cleanly_where_its_file_is_gone_or_anothers(
    file: Path, after: HeadAddress | None, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf.apps.deploy.node.TIDY_SECONDS", 0.3)
    if after is not None:
        publish(file, after)
    assert ended_cleanly(file, HEAD) == clean


def test_a_file_system_that_fails_does_not_end_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    assert not is_there(tmp_path / "gone")
    assert is_there(tmp_path / "plain" / "below")  # ENOTDIR stands for the many ways to fail


def test_a_training_takes_the_address_from_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_RUN_ID", "run-1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef")
    publish(file, HEAD)
    assert joining(file) == ["cluster.address=10.0.0.1:40123"]
    assert joining(None) == []


@pytest.mark.parametrize("missing", ["RLHF_RUN_ID", "RAY_AUTH_TOKEN"])
def test_a_training_without_run_or_secret_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setenv("RLHF_RUN_ID", "run-1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef")
    monkeypatch.delenv(missing)
    with pytest.raises(UserError, match=missing):
        joining(file)
