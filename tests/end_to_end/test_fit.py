"""`rlhf fit` on the quickstart: it finds, goes on after Ctrl-C, and leaves no process."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from rlhf.recipe.loading import load_recipe
from tests.end_to_end.running import QUICKSTART, ROOT, SMALL, command, environment, run_cold
from tests.end_to_end.test_clean_ends import MARK, marked, until
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


def rows(folder: Path) -> list[dict[str, object]]:
    file = folder / "trials.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_after_ctrl_c_the_same_command_goes_on_and_the_result_is_a_recipe(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "fit"
    words = ("fit", str(QUICKSTART), *SMALL, "model.warmup=null", f"model.cache_dir={cache}", "--dir", str(folder))
    fitting = subprocess.Popen(
        command(*words, "--trials", "3"), cwd=ROOT, env=environment() | {MARK: str(folder)}, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert until(lambda: len(rows(folder)) == 1 and (folder / "trial").exists(), scaled(240))
    fitting.send_signal(signal.SIGINT)
    said, _ = fitting.communicate(timeout=scaled(60))
    assert fitting.returncode == 130
    assert "quickest: the recipe's own settings" in said
    assert until(lambda: not marked(folder), scaled(20))

    (first,) = rows(folder)
    ended = run_cold(*words, "--trials", "2")
    assert ended.returncode == 0, ended.stdout
    assert rows(folder)[0] == first
    assert len(rows(folder)) == 2
    fitted = load_recipe(folder / "fitted.yaml").recipe
    assert (fitted.name, fitted.trainer.groups_per_update) == ("quickstart", 8)
    assert ended.stdout.count("s an update\n") == 2
