"""Submission against tools that answer as SLURM's do. The real ones are in tests/slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.running import QUICKSTART, environment
from tests.warm.client import Ended
from tests.warm.command_line import rlhf


@dataclass(frozen=True)
class Tools:
    """A folder that holds all that PATH shows."""

    folder: Path

    def add(self, name: str, body: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cat", "sleep"):
        (folder / name).symlink_to(Path("/bin") / name)
    return Tools(folder)


Submit = Callable[..., Ended]


@pytest.fixture
def submit(tools: Tools, tmp_path: Path) -> Submit:
    """`rlhf slurm … --submit` where only `tools` are found."""

    def run(*words: str) -> Ended:
        surroundings = environment() | {"PATH": str(tools.folder)}
        command = ("slurm", QUICKSTART, f"run.dir={tmp_path / 'run'}", *words, "--submit")
        return rlhf(*command, folder=tmp_path, environment=surroundings)

    return run


def refusal(ended: Ended) -> str:
    """The one line that a user's error is."""
    assert (ended.returncode, ended.stdout) == (2, "")
    [line] = ended.stderr.splitlines()
    return line


def test_a_machine_without_slurm_is_told_so(submit: Submit) -> None:
    assert "there is no sbatch on this machine" in refusal(submit())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trainer.update=3",), "did you mean 'trainer.updates'?"),
        (("cluster.kind=local",), "cluster.kind is local"),
        ((), "sbatch failed: sbatch: error: Invalid account"),
    ],
)
def test_what_cannot_be_submitted_is_one_line(tools: Tools, submit: Submit, words: tuple[str, ...], said: str) -> None:
    tools.add("sbatch", 'echo "sbatch: error: Invalid account" >&2; exit 1')
    assert said in refusal(submit(*words))


def test_the_script_goes_to_sbatch_and_the_job_is_told(tools: Tools, submit: Submit, tmp_path: Path) -> None:
    tools.add("sbatch", f'cat > {tmp_path / "given"}; echo "$*" > {tmp_path / "words"}; echo "4711;cluster"')
    two = ("rollout.gpus_per_engine=1", "trainer.deepspeed.gpus_per_rank=1", "name=mine")
    ended = submit("--nodes", "4", "--gpus-per-node", "8", *two)
    assert ended.returncode == 0, ended.stderr
    used, warning = ended.stderr.splitlines()
    assert (used, warning[:38]) == ("mine uses 2 of 32 GPUs", "warning: this installation is for CPUs")
    assert ended.stdout.startswith("job 4711: 4 nodes\n")
    assert f"{tmp_path / 'run' / 'logs'}/slurm-4711.out" in ended.stdout
    assert (tmp_path / "words").read_text() == "--parsable\n"
    assert submit("--nodes", "2", "--cpus-per-node", "4", "name=mine").stderr == "mine uses 1 of 8 cores\n"
    assert (tmp_path / "given").read_text().startswith("#!/usr/bin/env bash\n")
    assert (tmp_path / "run" / "logs").is_dir(), "SLURM makes no folders for its output"


def test_an_output_that_cannot_be_written_is_one_line(submit: Submit, tools: Tools) -> None:
    tools.add("sbatch", "exit 1")
    assert refusal(submit("--output", "/nowhere/job.sbatch")).startswith("error: cannot write /nowhere/job.sbatch")


def test_printing_needs_no_slurm(tmp_path: Path) -> None:
    bare = environment() | {"PATH": ""}
    command = ("slurm", QUICKSTART, "--nodes", "2", "--output", tmp_path / "job.sbatch")
    printed = rlhf(*command, folder=tmp_path, environment=bare)
    assert (printed.returncode, printed.stdout) == (0, "")
    assert "#SBATCH --nodes=2\n" in (tmp_path / "job.sbatch").read_text()
