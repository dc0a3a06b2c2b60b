"""Memory of the workers of a run, sampled from outside while it runs, and cut into its phases afterwards."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

Span = Mapping[str, Any]
SAMPLE_SECONDS = 0.1
PHASES = ("sleep", "hold", "weight_sync", "save", "train", "evaluate", "wait", "start")
"""Names of spans, the innermost first: a moment belongs to the first of these that covers it, or to what ended last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of one process: all that is resident, and its part of that where pages are divided by those that share them
    (proportional set size)."""

    resident: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The workers by name (`learner-0`) at one moment."""

    moment: float
    workers: Mapping[str, Held]

    @property
    def total(self) -> int:
        """What they take of the machine."""
        return sum(held.part for held in self.workers.values())

    def of(self, role: str) -> int:
        """What those of a role take."""
        return sum(held.part for name, held in self.workers.items() if name.startswith(role))


def watched(command: Sequence[str]) -> list[Sample]:
    """Run the command to its end; samples of the workers below it. Raises `CalledProcessError`."""
    samples = []
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            samples.append(Sample(moment=time.time(), workers=dict(_workers(psutil.Process(process.pid)))))
            time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return [sample for sample in samples if sample.workers]


def by_phase(samples: Sequence[Sample], spans: Sequence[Span]) -> dict[str, Sample]:
    """For each phase of the run, the sample with the largest sum over all workers."""
    found = largest((phase_at(sample.moment, spans), sample) for sample in samples)
    return {phase: found[phase] for phase in PHASES if phase in found}


def largest(named: Iterable[tuple[str | None, Sample]]) -> dict[str, Sample]:
    """The sample with the largest sum of each name."""
    found: dict[str, Sample] = {}
    for name, sample in named:
        if name and (name not in found or sample.total > found[name].total):
            found[name] = sample
    return found


def phase_at(moment: float, spans: Sequence[Span]) -> str | None:
    """The phase of a moment; None before the first."""
    span = span_at(moment, spans)
    return str(span["name"]) if span else None


def span_at(moment: float, spans: Sequence[Span]) -> Span | None:
    """The innermost span over a moment, or the last that ended before it."""
    known = [span for span in spans if span["name"] in PHASES and span["start"] <= moment]
    over = [span for span in known if moment <= span["start"] + span["seconds"]]
    if over:
        return min(over, key=lambda span: PHASES.index(span["name"]))
    return max(known, key=lambda span: span["start"] + span["seconds"], default=None)


def _workers(root: psutil.Process) -> Iterator[tuple[str, Held]]:
    """Processes whose output is a worker's log, by its name."""
    try:
        below = root.children(recursive=True)
    except psutil.Error:
        return
    for process in below:
        try:
            log = Path(f"/proc/{process.pid}/fd/1").readlink()
            if log.parent.name == "logs" and log.stem.startswith(("learner-", "engine-")):
                used = process.memory_full_info()
                yield log.stem, Held(resident=used.rss, part=used.pss)
        except (OSError, psutil.Error):
            continue
