"""Runs the checks one by one, each in a process with a deadline and a log, so that a crash or a hang costs one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rlhf.commands.gpu_checks.finding import GpuReport, GpuResult
from rlhf.commands.gpu_checks.table import Check

CHILD = "rlhf.commands.gpu_checks.child"
GRACE_SECONDS = 40.0
"""From SIGTERM to SIGKILL: a run that is told to end closes its processes."""
Perform = Callable[[Check], GpuResult]


def run_checks(
    checks: Iterable[Check],
    perform: Perform,
    *,
    gpus: int,
    nodes: int,
    installed: Collection[str],
    tell: Callable[[str], None],
) -> GpuReport:
    """Perform what this machine can; the rest is skipped by name. Each result is told as soon as it is known."""
    results = []
    for check in checks:
        lacks = check.lacks(gpus, nodes, installed)
        result = GpuResult(name=check.name, state="skip", expected="", found=lacks) if lacks else perform(check)
        tell(result.line)
        results.append(result)
    return GpuReport(gpus=gpus, nodes=nodes, results=tuple(results))


def performed_in_child(folder: Path, *, gpus: int, nodes: int, model: str | None, module: str = CHILD) -> Perform:
    """Performs a check in a process of its own, `module`, in a process group of its own."""

    def perform(check: Check) -> GpuResult:
        slug = re.sub(r"\W+", "_", check.name)
        request, answer, log = (folder / f"{slug}.{kind}" for kind in ("request.json", "answer.json", "log"))
        machine = {"gpus": gpus, "nodes": nodes, "folder": str(folder), "slug": slug, "model": model}
        request.write_text(json.dumps({"check": asdict(check), "machine": machine}))
        started = time.monotonic()
        fault = _run([sys.executable, "-m", module, str(request), str(answer)], log, check.deadline_seconds)
        seconds = time.monotonic() - started
        if fault or not answer.exists():
            found = fault or "it ended without an answer"
            return GpuResult(
                name=check.name, state="FAIL", expected="an answer", found=found, seconds=seconds, log=str(log)
            )
        told = json.loads(answer.read_text())
        return GpuResult(
            name=check.name,
            state="ok" if told["good"] else "FAIL",
            expected=told["expected"],
            found=told["found"],
            seconds=seconds,
            figures=told["figures"],
            log=str(log),
        )

    return perform


def _run(command: list[str], log: Path, seconds: float) -> str:
    """Run a command with its output in `log`; returns what went wrong, or nothing. All that it started ends with it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:g} s"
        finally:
            _end_group(process)
    if code == 0:
        return ""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{_ending(code)}: {lines[-1] if lines else 'it said nothing'}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to all of the group, and SIGKILL to what is left of it."""
    deadline = time.monotonic() + GRACE_SECONDS
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()  # collects it, so that an empty group is gone
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(GRACE_SECONDS)


def _ending(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
