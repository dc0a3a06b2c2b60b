"""A check that crashes, hangs or is not for this machine costs one line, and the report is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf.apps.cli import doctor
from rlhf.apps.gpu_checks import runner
from rlhf.apps.gpu_checks.runner import GpuResult, run_checks, run_gpu_check
from rlhf.apps.gpu_checks.table import CHECKS, GpuCheck
from rlhf.errors import UserError
from tests.nvml import FakeGpu, FakeNvml, install_nvml
from tests.pace import scaled
from tests.warm.command_line import rlhf


def result(folder: Path, name: str, seconds: float = 60) -> GpuResult:
    check = GpuCheck(name=name, function=f"tests.apps.gpu_checks.endings:{name}", deadline_seconds=seconds)
    return run_gpu_check(check, folder, gpus=1, nodes=1, model=None)


def test_a_line_has_what_was_expected_and_found(tmp_path: Path) -> None:
    good, bad = result(tmp_path, "well"), result(tmp_path, "ill")
    assert (good.state, good.figures) == ("ok", {"speed": 3.0})
    assert "expected 3; found 3" in good.line
    assert (bad.state, bad.found) == ("FAIL", "4")
    assert f"see {tmp_path / 'ill' / 'log'}" in bad.line


def test_a_crash_is_a_failure_with_the_last_line_of_its_log(tmp_path: Path) -> None:
    raised, died = result(tmp_path, "raises"), result(tmp_path, "dies")
    assert (raised.state, raised.found) == ("FAIL", "exit code 1: ValueError: of the test")
    assert died.state == "FAIL"
    assert died.found.startswith("ended by SIGABRT")
    assert "of the test" in Path(raised.log).read_text()


def test_a_check_that_hangs_ends_at_its_deadline_with_all_that_it_started(tmp_path: Path) -> None:
    hanging = result(tmp_path, "hangs", seconds=scaled(8))
    assert (hanging.state, hanging.found) == ("FAIL", f"no answer within {scaled(8):g} s")
    pid = int((tmp_path / "hangs" / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def passing(monkeypatch: pytest.MonkeyPatch, states: dict[str, str]) -> None:
    """Checks end as `states` say, or well, without being run."""

    def run(check: GpuCheck, folder: Path, **machine: Any) -> GpuResult:
        return GpuResult(name=check.name, state=states.get(check.name, "ok"), expected="", found="")

    monkeypatch.setattr(runner, "run_gpu_check", run)


def test_a_check_that_the_machine_cannot_do_is_skipped_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passing(monkeypatch, {})
    results = run_checks(CHECKS, tmp_path, gpus=1, nodes=1, model=None)
    assert capsys.readouterr().out.count("\n") == len(CHECKS)
    skipped = {one.name: one.found for one in results if one.state == "skip"}
    assert skipped["publish by nccl"] == "needs 2 GPUs"
    assert skipped["publish between nodes"] == "needs 2 nodes: --nodes 2"
    assert "packed rows" not in skipped


def test_eight_gpus_on_two_nodes_skip_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    passing(monkeypatch, {})
    results = run_checks(CHECKS, tmp_path, gpus=8, nodes=2, model=None)
    assert {one.state for one in results} == {"ok"}
    assert len({one.name for one in results}) == len(CHECKS)


def test_without_a_gpu_the_command_prints_a_line_and_ends_with_2() -> None:
    ended = rlhf("doctor", "--gpu")
    assert ended.returncode == 2
    assert ended.stdout.startswith("no GPU: ")
    assert ended.stdout.count("\n") == 1


def test_options_of_the_gpu_checks_are_refused_without_them() -> None:
    ended = rlhf("doctor", "--model", "a/b")
    assert (ended.returncode, ended.stderr) == (2, "error: --model, --nodes and --json go with --gpu\n")


def test_the_doctor_imports_nothing_heavy() -> None:
    program = "import sys, rlhf.apps.cli.doctor; sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", program], timeout=scaled(60)).returncode == 0


def test_the_command_writes_the_report_and_fails_with_its_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_nvml(monkeypatch, FakeNvml([FakeGpu("GPU-1111")]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor.tempfile, "mkdtemp", lambda prefix, dir: str(tmp_path))
    monkeypatch.setattr(doctor, "LOOKS", (doctor.gpus,))
    states = {CHECKS[0].name: "FAIL"}
    passing(monkeypatch, states)
    with pytest.raises(UserError, match=r"there is no folder .*absent"):
        doctor.run_gpu_doctor(None, 1, tmp_path / "absent" / "report.json")
    assert doctor.run_gpu_doctor(None, 1, tmp_path / "report.json") == 1
    printed = capsys.readouterr().out
    assert printed.startswith("ok    gpus            NVIDIA X1, 80 GiB")
    assert "1 x NVIDIA X1, 1 node(s)" in printed
    assert " 1 failed, " in printed
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["name"] for one in report["results"]] == [check.name for check in CHECKS]
    assert (report["failed"], report["machine"][0]["subject"]) == (1, "gpus")
    states.clear()
    assert doctor.run_gpu_doctor(None, 1, None) == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.run_gpu_doctor(None, 1, None) == 2
    assert os.listdir(tmp_path) == ["report.json"]
