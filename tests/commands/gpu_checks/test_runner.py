"""A check that crashes, hangs or is not for this machine costs one line, and the report is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rlhf.commands import doctor
from rlhf.commands.gpu_checks.finding import GpuResult
from rlhf.commands.gpu_checks.runner import performed_in_child, run_checks
from rlhf.commands.gpu_checks.table import CHECKS, Check
from rlhf.errors import UserError
from tests.commands.conftest import Command
from tests.commands.gpu_checks.stand_in import FakeGpu, FakeNvml
from tests.pace import scaled

CHILD = "tests.commands.gpu_checks.child_that"


def result(folder: Path, name: str, seconds: float = 60) -> GpuResult:
    perform = performed_in_child(folder, gpus=1, nodes=1, model=None, module=CHILD)
    return perform(Check(name=name, function="", deadline_seconds=seconds))


def test_an_answer_becomes_a_line_with_what_was_expected_and_found(tmp_path: Path) -> None:
    good, bad = result(tmp_path, "is well"), result(tmp_path, "is ill")
    assert (good.state, good.figures) == ("ok", {"speed": 3.0})
    assert "expected 3; found 3" in good.line
    assert (bad.state, bad.found) == ("FAIL", "4")
    assert f"see {tmp_path / 'is_ill.log'}" in bad.line


def test_a_crash_is_a_failure_with_its_last_words_and_its_log(tmp_path: Path) -> None:
    raised, died = result(tmp_path, "raises"), result(tmp_path, "dies")
    assert (raised.state, raised.found) == ("FAIL", "exit code 1: ValueError: of the test")
    assert died.state == "FAIL"
    assert died.found.startswith("ended by SIGABRT")
    assert "of the test" in Path(raised.log).read_text()


def test_a_check_that_hangs_ends_at_its_deadline_with_all_that_it_started(tmp_path: Path) -> None:
    hanging = result(tmp_path, "hangs", seconds=3)
    assert (hanging.state, hanging.found) == ("FAIL", "no answer within 3 s")
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_what_a_machine_lacks_is_skipped_by_name() -> None:
    told: list[str] = []
    performed: list[str] = []

    def perform(check: Check) -> GpuResult:
        performed.append(check.name)
        return GpuResult(name=check.name, state="FAIL", expected="", found="")

    report = run_checks(CHECKS, perform, gpus=1, nodes=1, installed={"transformers"}, tell=told.append)
    assert len(told) == len(CHECKS)
    skipped = {one.name: one.found for one in report.results if one.state == "skip"}
    assert skipped["publish by nccl"] == "needs 2 GPUs"
    assert skipped["publish by ipc"] == "needs vllm, ray, deepspeed, not installed"
    assert skipped["nodes' clocks and folder"] == "needs 2 nodes: --nodes 2"
    assert {*performed} | {*skipped} == {check.name for check in CHECKS}
    assert "learner's step" in performed
    assert report.failed == len(performed)
    assert json.loads(json.dumps(report.as_json()))["failed"] == report.failed


def test_a_machine_with_every_package_and_eight_gpus_on_two_nodes_skips_nothing() -> None:
    def perform(check: Check) -> GpuResult:
        return GpuResult(name=check.name, state="ok", expected="", found="")

    packages = {name for check in CHECKS for name in check.packages}
    report = run_checks(CHECKS, perform, gpus=8, nodes=2, installed=packages, tell=lambda line: None)
    assert {one.state for one in report.results} == {"ok"}
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_without_a_gpu_it_says_so_in_a_line_and_ends_with_2(rlhf: Command) -> None:
    ended = rlhf("doctor", "--gpu")
    assert ended.returncode == 2
    assert ended.stdout.startswith("no GPU: ")
    assert ended.stdout.count("\n") == 1


def test_options_of_the_gpu_checks_are_not_ignored_without_them(rlhf: Command) -> None:
    ended = rlhf("doctor", "--model", "a/b")
    assert (ended.returncode, ended.stderr) == (2, "error: --model, --nodes and --json go with --gpu\n")


def test_a_report_without_a_folder_is_refused_before_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "nvml_library", lambda: FakeNvml([FakeGpu("GPU-1111", name="NVIDIA X1")]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match=r"there is no folder .*absent"):
        doctor.run_gpu_doctor(None, 1, tmp_path / "absent" / "report.json")


def test_to_say_so_nothing_heavy_is_imported() -> None:
    program = "import sys, rlhf.commands.doctor; sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", program], timeout=scaled(60)).returncode == 0


def test_the_command_writes_the_report_and_fails_with_its_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml = FakeNvml([FakeGpu("GPU-1111", name="NVIDIA X1")])
    monkeypatch.setattr(doctor, "nvml_library", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor.tempfile, "mkdtemp", lambda prefix, dir: str(tmp_path))
    states = {CHECKS[0].name: "FAIL"}

    def performing(folder: Path, **machine: object) -> object:
        assert machine == {"gpus": 1, "nodes": 1, "model": None}
        return lambda check: GpuResult(name=check.name, state=states.get(check.name, "ok"), expected="", found="")

    monkeypatch.setattr(doctor, "performed_in_child", performing)
    assert doctor.run_gpu_doctor(None, 1, tmp_path / "report.json") == 1
    told = capsys.readouterr().out
    assert told.startswith("1 x NVIDIA X1, 1 node(s)")
    assert " 1 failed, " in told
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["name"] for one in report["results"]] == [check.name for check in CHECKS]
    states.clear()
    assert doctor.run_gpu_doctor(None, 1, None) == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.run_gpu_doctor(None, 1, None) == 2
    assert os.listdir(tmp_path) == ["report.json"]
