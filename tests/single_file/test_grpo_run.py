"""The single file on real vLLM: its weights arrive, and it learns."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.single_file.loaded import SOURCE

pytestmark = pytest.mark.engine

ROOT = SOURCE.parents[2]
AGREES = 1e-4
LINE = re.compile(r"update (\d+)/\d+  reward (\S+)  held-out (\S+)")


def output(*command: str, timeout_seconds: float) -> list[str]:
    ended = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=timeout_seconds
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.splitlines()


def test_the_engine_samples_from_the_learners_weights_after_the_last_publish() -> None:
    lines = output("-m", "tests.single_file.run_program", timeout_seconds=280)
    assert [LINE.fullmatch(line).group(1) for line in lines if line.startswith("update")] == ["1", "2", "3"]  # type: ignore[union-attr]
    figures = json.loads(lines[-1])
    assert figures["agreement"] <= AGREES
    assert figures["movement"] > 10 * AGREES, "the publishes must have had something to bring"
    assert figures["stale_head"] > 10 * AGREES, "a head left behind must show"


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_whole_run_raises_the_held_out_reward_from_a_minority_to_nearly_all() -> None:
    *_, last = output(str(SOURCE), timeout_seconds=480)
    found = re.fullmatch(r"held-out reward (\S+) -> (\S+) on 256 problems", last)
    assert found, last
    start, end = map(float, found.groups())
    assert end >= 0.8
    assert end - start >= 0.3
