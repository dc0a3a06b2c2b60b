"""Jobs of `rlhf slurm … --submit` on the private SLURM, and what they leave."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.records import EpisodeRecord
from tests.end_to_end.running import QUICKSTART, ROOT, SMALL, command, environment, logs, versions_of
from tests.slurm.private import PrivateSlurm
from tests.slurm.processes import until, with_variable

START_SECONDS, END_SECONDS, CLEAN_SECONDS = 300, 420, 10
OVER_BOTH_NODES = ("trainer.deepspeed.ranks=2", "trainer.deepspeed.cpus_per_rank=1.5")
"""A node of two cores holds one rank, and beside it one engine of half a core."""
LONG = (*SMALL, "model.warmup=null", "trainer.updates=100000", "data.eval=null", "run.max_restarts=0")
"""Overrides for a job that is to be in the middle of training."""
GROUPS, SAMPLES = 8, 4
"""Of an update of `LONG`."""
UNHURRIED = ("reward.kind=function", "reward.function=tests.slurm.rewards:unhurried")
"""An update of `LONG` then takes most of a second, on any machine."""
GOING_ON = ("PENDING", "CONFIGURING", "RUNNING", "SIGNALING", "COMPLETING", "REQUEUED", "PREEMPTED")
"""A job that is preempted says so for a moment, gets its signal for another, and is queued again."""


@dataclass(frozen=True)
class Job:
    """A submitted run. `scratch` is where its temporary files go, on all nodes."""

    slurm: PrivateSlurm
    number: str
    folder: Path
    scratch: Path

    @property
    def state(self) -> str:
        return self.shown("JobState")

    def shown(self, field: str) -> str:
        """What SLURM says of the job, for instance `Restarts`."""
        fields = self.slurm.run("scontrol", "show", "job", self.number)
        found = re.search(rf"\b{field}=(\S*)", fields)
        assert found, fields
        return found[1]

    @property
    def output(self) -> str:
        """What the job's script and training have printed."""
        printed = self.folder / "logs" / f"slurm-{self.number}.out"
        return printed.read_text(errors="replace") if printed.exists() else ""

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def episodes(self) -> list[EpisodeRecord]:
        return list(read_episodes(self.folder / "episodes"))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        metrics = self.folder / "metrics.jsonl"
        return list(read_jsonl(metrics)) if metrics.exists() else []

    def processes(self, node: str | None = None) -> list[psutil.Process]:
        """Whatever lives of it, on one node or on both."""
        ours = with_variable("SLURM_JOB_ID", self.number, SLURM_CONF=str(self.slurm.configuration))
        return ours if node is None else [one for one in ours if on_node(one, node)]

    def until_trained(self, updates: int) -> None:
        """Wait until so many updates are recorded."""
        metrics = self.folder / "metrics.jsonl"

        def trained() -> bool:
            return metrics.exists() and len(metrics.read_text().splitlines()) >= updates

        assert until(lambda: trained() or self.state not in GOING_ON, START_SECONDS), self.words()
        assert self.state == "RUNNING", f"{self.state} before update {updates}\n{self.words()}"

    def until_ended(self, seconds: float = END_SECONDS) -> str:
        """Wait for the end and say how it was, in SLURM's word."""
        state = self.state

        def ended() -> bool:
            nonlocal state
            state = self.state
            return state not in GOING_ON

        assert until(ended, seconds), f"{state}\n{self.words()}"
        return state

    def assert_nothing_left(self) -> None:
        """Ten seconds after its end there is no process and no temporary file of it."""
        assert until(lambda: not self.processes(), CLEAN_SECONDS), self.processes()
        assert list(self.scratch.iterdir()) == []

    def words(self) -> str:
        """What to read when something went otherwise than expected."""
        return f"{self.output[-6000:]}\n{logs(self.folder)}"  # of the nodes and of the workers


def assert_each_trained_once(job: Job, updates: int) -> None:
    """Every prompt of a run of `LONG` with so many updates was trained once, in order, by the weights of its update."""
    trained = [(one.ordinal, one.sample) for one in job.episodes if one.outcome == "trained"]
    assert sorted(trained) == [(ordinal, sample) for ordinal in range(updates * GROUPS) for sample in range(SAMPLES)]
    assert [line["update"] for line in job.metrics] == list(range(1, updates + 1))
    assert [one.update for one in job.episodes] == sorted(one.update for one in job.episodes)
    for episode in job.episodes:
        assert set(versions_of(episode)) == {episode.update - 1}
    accounts = job.summary["sample_counts"]
    assert accounts["admitted"] == accounts["trained"] == len(job.episodes) == len(trained)


def rlhf_slurm(slurm: PrivateSlurm, *words: str, scratch: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`rlhf slurm` as a person would call it on this cluster."""
    variables = environment() | slurm.variables
    if scratch:
        variables["TMPDIR"] = str(scratch)
    return subprocess.run(
        command("slurm", *words), cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120
    )  # fmt: skip


def submit(slurm: PrivateSlurm, folder: Path, cache: Path, *words: str, nodes: int = 2, time: str = "30") -> Job:
    """Submit the quickstart; its temporary files go to a folder of its own, short enough for Ray's sockets."""
    scratch = slurm.folder / f"t{len(list(slurm.folder.glob('t*')))}"
    scratch.mkdir()
    places = (f"run.dir={folder}", f"model.cache_dir={cache}")
    asked = ("--nodes", str(nodes), "--time", time, "--submit")
    done = rlhf_slurm(slurm, str(QUICKSTART), *asked, *places, *words, scratch=scratch)
    said = re.search(r"job (\d+)", done.stdout)
    assert said, f"{done.returncode}: {done.stdout}{done.stderr}"
    return Job(slurm, said[1], folder, scratch)


def on_node(process: psutil.Process, node: str) -> bool:
    """Whether SLURM started it, or an ancestor of it, on this node."""
    try:
        return process.environ().get("SLURMD_NODENAME") == node
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
