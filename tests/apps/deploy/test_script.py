"""What a rendered script does, run by bash with stand-ins for SLURM's commands and ours. Real SLURM: tests/slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.apps.deploy.slurm.job import NodeGroup
from rlhf.apps.deploy.slurm.render import render
from tests.apps.deploy.rendered import job
from tests.pace import scaled

pytestmark = pytest.mark.waits
END_SECONDS = scaled(30)
SRUN = 'echo "$*" >>"$FAKES/steps"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"'
SCONTROL = """
if [ "$1" = show ]; then cat "$FAKES/shown"; exit; fi
echo "$*" >>"$FAKES/asked"
if [ "$(wc -l <"$FAKES/asked")" -gt "$(cat "$FAKES/refusals")" ]; then exit; fi
echo "Unable to contact slurm controller" >&2
exit 1
"""
SLEEP = '[ "$1" = 10 ] || exec /bin/sleep "$@"'
"""SLURM is asked again at once."""
RLHF = """
echo "$*" >>"$FAKES/words"; echo "$RAY_AUTH_TOKEN $RLHF_RUN_ID" >>"$FAKES/secrets"
if [ "$1" = train ]; then
  trap 'mkdir -p "$RUN/checkpoints/version-000001"; exit 75' USR1
  trap 'exit 130' TERM
  touch "$FAKES/training"
  . "$FAKES/train"
fi
file=$3
case $* in *--head*) echo found >"$file" ;; esac
while [ ! -e "$file" ]; do sleep 0.1; done
while [ -e "$file" ]; do
  sleep 0.1
  case $* in *--head*) ;; *) if [ -e "$FAKES/node_fails" ]; then
    echo "$(date -u +%Y-%m-%dT%H:%M:%S.9)Z n2 error: its disk is gone" >>"$RUN/logs/node-n2.log"; exit 9
  fi ;; esac
done
"""
FOR_EVER = "while true; do sleep 0.1; done"


class Script:
    """The script of a job of two nodes, in a folder with the stand-ins. `training` is what training does, in bash.
    SLURM refuses so often to queue the job again, and shows it as `shown`."""

    def __init__(self, folder: Path, training: str, *, refusals: int = 0, shown: str = "") -> None:
        self.folder, self.run = folder, folder / "run"
        fakes = {"srun": SRUN, "scontrol": SCONTROL, "sleep": SLEEP, "rlhf": RLHF}
        for name, body in fakes.items():
            (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
            (folder / name).chmod(0o755)
        for name, text in (("train", training), ("refusals", str(refusals)), ("shown", shown)):
            (folder / name).write_text(text)
        ours = replace(job(NodeGroup(nodes=2, cpus=1)), run_dir=self.run, folder=folder, rlhf=folder / "rlhf")
        told = {"FAKES": str(folder), "RUN": str(self.run), "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "-c", render(ours)],
            env=os.environ | told | {"PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def until_training(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        while not (self.folder / "training").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def ended(self) -> tuple[int, str]:
        """Its code and all it printed; nothing of it runs any more, and its rendezvous is gone."""
        before, _ = self.process.communicate(timeout=END_SECONDS)
        said = before + (self.run / "logs" / "slurm-7.out").read_text()
        assert not list(self.run.glob("logs/rendezvous-*")), said
        return self.process.returncode, said

    def told(self, name: str) -> str:
        """What a stand-in was told."""
        file = self.folder / name
        return file.read_text() if file.exists() else ""


def test_a_training_that_finishes_ends_the_job_and_its_nodes_which_share_a_secret(tmp_path: Path) -> None:
    script = Script(tmp_path, "sleep 1; exit 0")
    code, said = script.ended()
    assert (code, script.told("asked")) == (0, "")
    started = sorted(script.told("words").splitlines())
    file = script.run / "logs" / "rendezvous-7-0.json"
    assert started[0].startswith(f"node --rendezvous {file} --log-dir {script.run}/logs")
    assert started[0].endswith("--grace 300")
    assert started[1].endswith("--grace 300 --head")
    recipe = script.run / "logs" / "recipe-7.yaml"
    assert recipe.read_text() == job(NodeGroup(nodes=1)).recipe, "as it was when the script was made"
    assert started[2].startswith(f"train {recipe} ")
    assert f"--rendezvous {file} --resume cluster.nodes=2" in started[2]
    [told] = set(script.told("secrets").splitlines())
    secret, run = told.split()
    assert (len(secret), run) == (64, "slurm-7-0")
    assert secret not in script.told("words") + said, "it is on no command line"


def test_a_training_that_saved_is_queued_again(tmp_path: Path) -> None:
    script = Script(tmp_path, FOR_EVER)
    script.until_training()
    script.process.send_signal(signal.SIGUSR1)
    code, said = script.ended()
    assert (code, script.told("asked")) == (75, "requeue 7\n"), said


def test_a_refusal_to_queue_it_again_is_told_and_asked_again(tmp_path: Path) -> None:
    script = Script(tmp_path, FOR_EVER, refusals=2)
    script.until_training()
    script.process.send_signal(signal.SIGUSR1)
    code, said = script.ended()
    assert (code, script.told("asked")) == (75, "requeue 7\n" * 3), said
    assert "SLURM did not queue the job again, 8 more tries: Unable to contact slurm controller" in said
    assert "the job is queued again, and continues from " in said


def test_a_job_that_is_never_queued_again_says_where_it_would_go_on(tmp_path: Path) -> None:
    script = Script(tmp_path, FOR_EVER, refusals=100)
    script.until_training()
    script.process.send_signal(signal.SIGUSR1)
    code, said = script.ended()
    assert (code, script.told("asked")) == (75, "requeue 7\n" * 10)
    assert f"submit it again, and it continues from {script.run}/checkpoints/version-000001" in said


@pytest.mark.parametrize(
    ("shown", "code", "asked", "words"),
    [
        ("EndTime=2026-01-31T12:00:00\n PreemptTime=2026-01-31T11:58:00", 75, "requeue 7\n", "it can by 2026-01-31T12"),
        ("", 75, "requeue 7\n", "preempted"),
        ("PreemptTime=None", 143, "", "the nodes were asked to end"),
    ],
    ids=["preempted", "slurm does not answer", "asked to end"],
)
def test_nodes_that_are_told_to_end_have_the_run_saved_if_it_is_preempted(
    tmp_path: Path, shown: str, code: int, asked: str, words: str
) -> None:
    script = Script(tmp_path, FOR_EVER, shown=shown)
    script.until_training()
    (script.run / "logs/rendezvous-7-0.told").touch()
    ended, said = script.ended()
    assert (ended, script.told("asked")) == (code, asked), said
    assert words in said
    assert not (script.run / "logs/rendezvous-7-0.told").exists()


def test_a_preempted_training_that_could_not_save_is_queued_again(tmp_path: Path) -> None:
    """As under pyxis, where the training is a task too, and is asked to end."""
    script = Script(tmp_path, f"trap 'exit 130' USR1; {FOR_EVER}", shown="PreemptTime=2026-01-31T11:58:00")
    script.until_training()
    (script.run / "logs/rendezvous-7-0.told").touch()
    code, said = script.ended()
    assert (code, script.told("asked")) == (130, "requeue 7\n"), said
    assert "the job is queued again, and continues from its beginning" in said


def test_a_failure_after_a_save_is_queued_again_and_an_error_to_correct_is_not(tmp_path: Path) -> None:
    saves = 'sleep 1; mkdir -p "$RUN/checkpoints/version-000001"; exit'
    for code, asked in ((1, "requeue 7\n"), (2, "")):
        folder = tmp_path / str(code)
        folder.mkdir()
        script = Script(folder, f"{saves} {code}")
        ended, said = script.ended()
        assert (ended, script.told("asked")) == (code, asked), said


def test_a_start_without_an_update_is_not_queued_again(tmp_path: Path) -> None:
    script = Script(tmp_path, "sleep 1; exit 75")
    code, said = script.ended()
    assert (code, script.told("asked")) == (75, "")
    assert "raise --time, or lower --signal" in said


def test_a_training_that_fails_ends_the_job_with_its_code(tmp_path: Path) -> None:
    code, said = Script(tmp_path, "sleep 1; exit 3").ended()
    assert code == 3
    assert "first to end: training, with code 3; the logs are in" in said


def test_a_node_that_fails_is_named_with_its_words_and_ends_the_job(tmp_path: Path) -> None:
    """Training, which loses its workers with the node, has time for its own words, and the code is the node's."""
    code, said = Script(tmp_path, 'sleep 1; touch "$FAKES/node_fails"; sleep 3; echo "a worker died"; exit 1').ended()
    assert code == 9
    assert "first to end: another node (of 1), with code 9" in said
    assert "n2 error: its disk is gone" in said
    assert "a worker died" in said


@pytest.mark.parametrize("training", [FOR_EVER, f"trap '' TERM; {FOR_EVER}"], ids=["willing", "deaf"])
def test_scancel_ends_everything_within_ten_seconds(tmp_path: Path, training: str) -> None:
    script = Script(tmp_path, training)
    script.until_training()
    began = time.monotonic()
    script.process.send_signal(signal.SIGTERM)
    code, said = script.ended()
    assert code == 143
    assert "asked to end" in said
    assert time.monotonic() - began < scaled(10)
