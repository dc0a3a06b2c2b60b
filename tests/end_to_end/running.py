"""Runs of the real command in processes of their own, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.cluster.fork_client import SOCKET
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.records import UNKNOWN_VERSION, EpisodeRecord
from tests.pace import scaled
from tests.warm import client as warm

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
RUN_SECONDS = scaled(240)
SMALL = ("trainer.groups_per_update=8", "trainer.group_size=4", "trainer.eval_every=0", "data.eval.arguments.rows=32")
"""Overrides of the quickstart for tests that look at the machinery and not at what is learnt."""


@dataclass(frozen=True)
class Run:
    """A finished `rlhf train`."""

    folder: Path
    process: subprocess.CompletedProcess[str]

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def episodes(self) -> list[EpisodeRecord]:
        return list(read_episodes(self.folder / "episodes"))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def models(self) -> list[Path]:
        """Of every checkpoint that was kept, the oldest first."""
        return [path / "huggingface" for path in sorted((self.folder / "checkpoints").glob("version-*"))]

    @property
    def model(self) -> Path:
        return self.models[-1]


def command(*arguments: str) -> list[str]:
    """The script, or the module in a virtual environment that has ours on its path and no script."""
    script = Path(sys.executable).parent / "rlhf"
    return [*([str(script)] if script.exists() else [sys.executable, "-m", "rlhf"]), *arguments]


def environment() -> dict[str, str]:
    """Of a command as a shell starts it."""
    return {name: value for name, value in warm_environment().items() if name != SOCKET}


def warm_environment() -> dict[str, str]:
    """Of a command from the session's fork server, where Ray's workers come from too."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def train(
    folder: Path, cache: Path, *overrides: str, recipe: Path = QUICKSTART, expect: int = 0, cold: bool = False
) -> Run:
    """Run `rlhf train` to its end; its exit code is `expect`. `cold` starts it as a shell does, imports and all."""
    arguments = ("train", str(recipe), f"run.dir={folder}", f"model.cache_dir={cache}", *overrides)
    process = run_cold(*arguments) if cold else run_warm(*arguments)
    assert process.returncode == expect, f"{process.stdout[-2000:]}\n{process.stderr[-4000:]}\n{logs(folder)}"
    return Run(folder, process)


def run_cold(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command as a shell starts it."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=RUN_SECONDS
    )


def run_warm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command from the warm server."""
    return warm.run(("-m", "rlhf", *arguments), environment=warm_environment(), timeout=RUN_SECONDS)


def left_as_they_were(before: Path, after: Path) -> set[str]:
    """Tensors of two Hugging Face folders that are equal, bit for bit: what training did not move."""
    import torch
    from safetensors.torch import load_file

    one, other = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert one.keys() == other.keys()
    return {name for name, tensor in one.items() if torch.equal(tensor, other[name])}


def logs(folder: Path) -> str:
    """The ends of the workers' logs, for a failure's message."""
    return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in sorted((folder / "logs").glob("*.log")))


def largest_difference(episodes: Sequence[EpisodeRecord]) -> float:
    """Largest |engine - learner| log-prob over every sampled token that was trained."""
    gaps = [
        float(np.nanmax(abs(episode.behaviour_logprobs - episode.proximal_logprobs)))
        for episode in episodes
        if episode.behaviour_logprobs is not None and episode.proximal_logprobs is not None
    ]
    assert gaps, "no trained token was recorded"
    return max(gaps)


def versions_of(episode: EpisodeRecord) -> list[int]:
    """The policy version of each sampled token."""
    return [] if episode.versions is None else episode.versions[episode.versions != UNKNOWN_VERSION].tolist()
