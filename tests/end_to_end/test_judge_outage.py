"""A run whose reward server is killed in its middle, and comes back: nothing is lost, nothing scored 0, and the audit
passes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI

from rlhf.apps.cli.audit import run_audit
from rlhf.runs.records import EpisodeOutcome
from tests.end_to_end.running import SMALL, train
from tests.servers import running

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(400)]
UPDATES, EPISODES = 2, 8 * 4


class Judge:
    """Marks every reply from 1 to 3. Its server is killed after `before` marks, and is back after a second."""

    def __init__(self, before: int) -> None:
        self.before, self.marks, self.app = before, 0, FastAPI()
        self.reached, self.ended = threading.Event(), threading.Event()

        @self.app.post("/")
        async def mark(body: dict[str, Any]) -> int:
            self.marks += 1
            if self.marks == before:
                self.reached.set()
            return 1 + len(body["response"]) % 3

        self.url, self.ready = "", threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        with running(self.app) as self.url:
            self.ready.set()
            self.reached.wait(300)
        time.sleep(1)
        with running(self.app, urlsplit(self.url).port or 0):
            self.ended.wait(300)


def test_a_reward_server_that_is_gone_for_a_while_costs_nothing(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = Judge(EPISODES + 8)
    judge.thread.start()
    assert judge.ready.wait(60)
    overrides = [*SMALL, "cluster.kind=local", f"trainer.updates={UPDATES}", "trainer.filter.equal_rewards=false"]
    server = ["reward.kind=remote", f"reward.remote.url={judge.url}", "reward.remote.api=slime"]
    run = train(tmp_path / "run", cache, *overrides, *server, "reward.http.max_backoff_seconds=0.5", "data.eval=null")
    judge.ended.set()
    judge.thread.join(60)
    told = run.process.stdout + run.process.stderr
    assert told.count(f"{judge.url} does not answer") == 1
    assert told.count(f"{judge.url} answers again") == 1
    trained = [one for one in run.episodes if one.outcome is EpisodeOutcome.TRAINED]
    assert len(trained) == UPDATES * EPISODES
    assert {one.reward for one in trained} <= {1.0, 2.0, 3.0}
    assert not [one for one in run.episodes if one.failure_kind]
    assert run_audit(run.folder) == 0, capsys.readouterr().out
