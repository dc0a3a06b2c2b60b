"""A run that loses a process, or hangs, goes on by itself from its last checkpoint and ends as if nothing had been."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from rlhf.apps.cli.audit import run_audit
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.restarts import read_restarts
from tests.end_to_end.running import ROOT, RUN_SECONDS, logs, warm_environment
from tests.end_to_end.test_clean_ends import END_SECONDS, long_run, marked, until, worker_of
from tests.warm import client as warm

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

CALCULATOR = ROOT / "recipes" / "tool_calculator.yaml"
UPDATES, SAVE_EVERY = 16, 4
TRAINING = (
    f"trainer.updates={UPDATES}", f"trainer.save_every={SAVE_EVERY}", "trainer.weight_sync.verify_at_start=false",
    "trainer.deepspeed.ranks=2", "trainer.deepspeed.timeout_seconds=60", "rollout.weight_sync_timeout_seconds=60",
    "run.max_restarts=3", "run.silence_minutes=0.5", "cluster.placement_timeout_seconds=240",
)  # fmt: skip
Process = subprocess.Popen[str] | warm.WarmProcess


def controller(guard: Process) -> psutil.Process:
    (child,) = psutil.Process(guard.pid).children()
    return child


def updates(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def comes(guard: Process, count: Callable[[], int], beyond: int) -> bool:
    """Whether there are more than so many; also once the run has ended."""
    return count() > beyond or guard.poll() is not None


def kill_a_rank(guard: Process, folder: Path) -> None:
    worker_of(folder, "learner-0.log").kill()


def stop_a_rank(guard: Process, folder: Path) -> None:
    worker_of(folder, "learner-1.log").send_signal(signal.SIGSTOP)


def kill_the_controller(guard: Process, folder: Path) -> None:
    controller(guard).kill()


def stop_the_controller(guard: Process, folder: Path) -> None:
    controller(guard).send_signal(signal.SIGSTOP)


HARMS: dict[Callable[[Process, Path], None], str] = {
    kill_a_rank: "learner-0 died: killed by SIGKILL",
    stop_a_rank: "learner-1 does not answer (stopped, or its node is gone), learner-0 is in ",
    kill_the_controller: "the controller was killed by SIGKILL",
    stop_the_controller: "the controller was stopped by a signal and did not beat for",
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_run_goes_on_by_itself(tmp_path: Path, cache: Path, harm: Callable[[Process, Path], None]) -> None:
    folder, output, harmed = tmp_path / "run", tmp_path / "output.txt", 0.0
    with long_run(folder, cache, *TRAINING) as guard:

        def awaits(condition: Callable[[], object]) -> float:
            assert until(lambda: condition() or guard.poll() is not None, RUN_SECONDS)
            return time.monotonic() - harmed

        awaits(lambda: updates(folder) >= 6)
        reached, harmed = updates(folder), time.monotonic()
        harm(guard, folder)
        again = awaits(lambda: read_restarts(folder / "restarts.jsonl"))
        print(f"{harm.__name__}: started again after {again:.0f} s,", end=" ")
        print(f"as far as before after {awaits(lambda: updates(folder) > reached):.0f} s")
        assert guard.wait(RUN_SECONDS) == 0, f"{output.read_text()}\n{logs(folder)}"
        assert until(lambda: not marked(folder), END_SECONDS)
    (restart,) = read_restarts(folder / "restarts.jsonl")
    assert HARMS[harm] in restart.cause
    assert restart.reached - restart.from_update <= SAVE_EVERY
    assert restart.sentence in output.read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["outcome"], summary["updates"]) == ("finished", UPDATES)
    assert run_audit(folder) == 0
    if harm is stop_the_controller:
        for log in ("controller", "learner-0", "engine-0"):
            assert "most recent call first" in (folder / "logs" / f"{log}.log").read_text()


MULTI_TURN = (
    "environment.environment=tests.env.environments:Nonce", "environment.arguments={}", "environment.max_turns=3",
    "data.eval=null", "model.warmup=null", "sampling.max_tokens=16",
    f"sampling.stop_token_ids={list(range(50, 150))}", "trainer.groups_per_update=4",
    "trainer.group_size=2", "trainer.max_staleness=1", "trainer.updates=150", "trainer.save_every=2",
    "trainer.weight_sync.verify_at_start=false", "cluster.kind=local", "run.max_restarts=40",
)  # fmt: skip
KILLS = 30


@pytest.mark.timeout(3000)
def test_after_thirty_kills_of_the_controller_every_sample_has_one_fate(tmp_path: Path, cache: Path) -> None:
    folder, output, moments = tmp_path / "run", tmp_path / "output.txt", random.Random(30)
    words = ("-m", "rlhf", "train", CALCULATOR, f"run.dir={folder}", f"model.cache_dir={cache}", *MULTI_TURN)
    with output.open("w") as stream:
        guard = warm.start(words, environment=warm_environment(), stdout=stream, stderr=stream)
    try:
        reached = 0
        for kill in range(KILLS):
            wanted = reached if moments.random() < 0.8 else -1  # else perhaps before its first update
            assert until(partial(comes, guard, lambda: updates(folder), wanted), RUN_SECONDS), output.read_text()
            time.sleep(moments.uniform(0, 2))
            reached = updates(folder)
            controller(guard).kill()
            made = partial(comes, guard, lambda: len(read_restarts(folder / "restarts.jsonl")), kill)
            assert until(made, RUN_SECONDS), output.read_text()
        assert guard.wait(RUN_SECONDS) == 0, output.read_text()
    finally:
        guard.terminate()
    assert run_audit(folder) == 0
    restarts, episodes = read_restarts(folder / "restarts.jsonl"), list(read_episodes(folder / "episodes"))
    assert {restart.cause for restart in restarts} == {"the controller was killed by SIGKILL"}
    print(f"{KILLS} kills: {sum(one.reached - one.from_update for one in restarts)} updates were trained again")
    fates = Counter((episode.ordinal, episode.sample) for episode in episodes)
    assert set(fates.values()) == {1}
    assert sorted(fates) == [(ordinal, sample) for ordinal in range(len(fates) // 2) for sample in range(2)]
    counts = [[turn["reward"] for turn in one.turns or () if turn["reward"] is not None] for one in episodes]
    assert max(map(len, counts)) == 3, "episodes have several turns"
    for count in counts:  # a step is worth its number, which the environment counts
        assert count == [1.0, 2.0, 3.0][: len(count)], "each is played from its beginning"
