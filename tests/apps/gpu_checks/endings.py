"""Checks that end in every way."""

from __future__ import annotations

import os
import subprocess
import time

from rlhf.apps.gpu_checks.machine import Finding, GpuMachine


def well(machine: GpuMachine) -> Finding:
    return Finding(good=True, expected="3", found="3", figures={"speed": 3.0})


def ill(machine: GpuMachine) -> Finding:
    return Finding(good=False, expected="3", found="4")


def raises(machine: GpuMachine) -> Finding:
    raise ValueError("of the test")


def dies(machine: GpuMachine) -> Finding:
    os.abort()


def hangs(machine: GpuMachine) -> Finding:
    child = subprocess.Popen(["sleep", "600"])
    (machine.folder / "pid").write_text(str(child.pid))
    time.sleep(600)
    return well(machine)
