"""Memory of the workers of a run, sampled from outside while it runs, and cut into its phases afterwards."""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.1
PHASES = ("sleep", "hold", "weight_sync", "save", "train", "evaluate", "wait", "start")
"""Names of spans, the innermost first: a moment belongs to the first of these that covers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Bytes of each role's processes together, without what they share with others (proportional set size)."""

    moment: float
    bytes: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


def watched(command: Sequence[str]) -> list[Sample]:
    """Run the command to its end; samples of the workers below it. Raises `CalledProcessError`."""
    samples = []
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            samples.append(Sample(moment=time.time(), bytes=_bytes_by_role(psutil.Process(process.pid))))
            time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return [sample for sample in samples if sample.bytes]


def by_phase(samples: Sequence[Sample], spans: Path) -> dict[str, Sample]:
    """For each phase of the run, the sample with the largest sum over all workers."""
    told = [json.loads(line) for line in spans.read_text().splitlines()]
    largest: dict[str, Sample] = {}
    for sample in samples:
        phase = _phase_at(sample.moment, told)
        if phase and (phase not in largest or sample.total > largest[phase].total):
            largest[phase] = sample
    return {phase: largest[phase] for phase in PHASES if phase in largest}


def _phase_at(moment: float, spans: Sequence[Mapping[str, float]]) -> str | None:
    now = {span["name"] for span in spans if span["start"] <= moment <= span["start"] + span["seconds"]}
    return next((phase for phase in PHASES if phase in now), None)


def _bytes_by_role(root: psutil.Process) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for role, process in _workers(root):
        try:
            found[role] += process.memory_full_info().pss
        except psutil.Error:
            continue
    return dict(found)


def _workers(root: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    """Processes whose output is a worker's log, by the worker's role."""
    try:
        below = root.children(recursive=True)
    except psutil.Error:
        return
    for process in below:
        try:
            log = Path(f"/proc/{process.pid}/fd/1").readlink()
        except OSError:
            continue
        if log.parent.name == "logs" and log.stem.startswith(("learner-", "engine-")):
            yield log.stem.rpartition("-")[0], process
