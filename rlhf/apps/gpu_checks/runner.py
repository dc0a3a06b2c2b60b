"""Run each check in a process, `python -m rlhf.apps.gpu_checks.runner REQUEST.json`, with a deadline and a log, so
that a crash or a hang costs one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlhf.apps.gpu_checks.table import GpuCheck
from rlhf.cluster.host import resolve_name

RUNNER = "rlhf.apps.gpu_checks.runner"
GRACE_SECONDS = 40.0
"""Time from SIGTERM to SIGKILL, in which a run closes its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResult:
    """One line of the report: `state` is `ok`, `FAIL` or `skip`. For a skipped check `found` is the reason."""

    name: str
    state: str
    expected: str
    found: str
    seconds: float = 0.0
    figures: Mapping[str, float | str] = field(default_factory=dict)
    log: str = ""

    @property
    def line(self) -> str:
        if self.state == "skip":
            return f"{self.state:<5}{self.name:<34}{self.found}"
        log = f"; see {self.log}" if self.state == "FAIL" else ""
        return f"{self.state:<5}{self.name:<34}expected {self.expected}; found {self.found}{log} ({self.seconds:.0f} s)"


def run_checks(
    checks: Iterable[GpuCheck], folder: Path, *, gpus: int, nodes: int, model: str | None
) -> list[GpuResult]:
    """Run the checks that this machine can do, skip the others by name, and print each result at once. `folder` gets
    logs and runs."""
    results = []
    for check in checks:
        if lacks := check.lacks(gpus, nodes):
            results.append(GpuResult(name=check.name, state="skip", expected="", found=lacks))
        else:
            results.append(run_gpu_check(check, folder, gpus=gpus, nodes=nodes, model=model))
        print(results[-1].line, flush=True)
    return results


def run_gpu_check(check: GpuCheck, folder: Path, *, gpus: int, nodes: int, model: str | None) -> GpuResult:
    """Run one check in a process, and end everything that it started."""
    own = folder / re.sub(r"\W+", "_", check.name)
    own.mkdir()
    log, request, answer = (own / name for name in ("log", "request.json", "answer.json"))
    machine = {"gpus": gpus, "nodes": nodes, "model": model}
    request.write_text(json.dumps({"function": check.function, "arguments": check.arguments, "machine": machine}))
    started = time.monotonic()
    fault = _run([sys.executable, "-m", RUNNER, str(request)], log, check.deadline_seconds)
    finding = {"good": False, "expected": "an answer", "found": fault or "it ended without an answer", "figures": {}}
    if not fault and answer.exists():
        finding = json.loads(answer.read_text())
    return GpuResult(
        name=check.name,
        state="ok" if finding["good"] else "FAIL",
        expected=str(finding["expected"]),
        found=str(finding["found"]),
        seconds=time.monotonic() - started,
        figures=finding["figures"],  # type: ignore[arg-type]
        log=str(log),
    )


def perform_request(request: Path) -> None:
    """Run a requested check on this machine, and write its finding next to the request."""
    from rlhf.apps.gpu_checks.machine import Finding, GpuMachine  # with torch, which the doctor does without

    values = json.loads(request.read_text())
    function: Callable[..., Finding] = resolve_name(values["function"])
    machine = GpuMachine(folder=request.parent, shared=request.parent.parent, **values["machine"])
    finding = function(machine, *values["arguments"])
    request.with_name("answer.json").write_text(json.dumps(asdict(finding)))


def _run(command: list[str], log: Path, seconds: float) -> str:
    """Run a command in a new process group, with its output in `log`. Return a description of its failure, or ""."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
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
    ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{ended}: {lines[-1] if lines else 'it printed nothing'}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process group, and SIGKILL to its remaining processes."""
    deadline = time.monotonic() + GRACE_SECONDS
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()  # reaps it, so that an empty group disappears
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(GRACE_SECONDS)


if __name__ == "__main__":
    perform_request(Path(sys.argv[1]))
