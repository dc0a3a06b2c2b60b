"""The single file on real vLLM: its weights arrive, and it learns."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.single_file.loaded import SOURCE

pytestmark = pytest.mark.engine

SMALL = "--warmup-steps 150 --updates 2 --groups 16 --minibatches 2 --kl-coefficient 0.1 --temperature 0.9"


def output(*flags: str, timeout_seconds: float) -> list[str]:
    ended = subprocess.run(
        [sys.executable, str(SOURCE), *flags], cwd=SOURCE.parents[2], capture_output=True, text=True,
        timeout=timeout_seconds,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.splitlines()


def test_the_second_update_learns_from_what_the_first_one_published() -> None:
    """The file ends with an error where vLLM's log-probs are not the learner's, by which a publish that did not bring
    all weights would show in the second update."""
    updates = [line.split()[1] for line in output(*SMALL.split(), timeout_seconds=280) if line.startswith("update")]
    assert updates == ["1/2", "2/2"]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_whole_run_raises_the_held_out_reward_from_a_minority_to_nearly_all() -> None:
    *_, last = output(timeout_seconds=480)
    found = re.fullmatch(r"held-out reward (\S+) -> (\S+) on 256 problems", last)
    assert found, last
    start, end = map(float, found.groups())
    assert end >= 0.8
    assert end - start >= 0.3
