"""`rlhf drill`: what it refuses, and on the quickstart what comes of every harm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rlhf.apps.cli.drill import DISK_FULL, HARMS, HarmOutcome, run_drill
from rlhf.errors import UserError
from tests.end_to_end.running import QUICKSTART, command, environment

SFT = """kind: sft
model: {path: nowhere}
data: {train: {path: nowhere.jsonl}}
"""


def test_a_recipe_without_episodes_or_without_processes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(SFT)
    with pytest.raises(UserError, match="a drill needs a recipe of kind rl, with processes to harm"):
        run_drill(tmp_path / "sft.yaml")
    with pytest.raises(UserError, match=r"\(cluster\.kind: ray\)"):
        run_drill(QUICKSTART, ["cluster.kind=local"])


def test_a_row_says_what_was_noticed_and_what_was_lost() -> None:
    quiet = HarmOutcome(name="a scorer is killed", recovered=True, lost=0.4)
    assert quiet.row == ("a scorer is killed", "recovered", "training continued", "-", "0", "0")
    bad = HarmOutcome(name="a rank is killed", recovered=False, noticed=7.44, words="w " * 99, lost=36.2, again=3)
    assert bad.row[1:2] + bad.row[3:] == ("NOT RECOVERED", "7.4", "36", "3")
    assert bad.row[2].endswith(" …")


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_quickstart_survives_its_drill(tmp_path: Path) -> None:
    arguments = ("drill", str(QUICKSTART), f"run.dir={tmp_path / 'run'}", f"model.cache_dir={tmp_path / 'cache'}")
    drill = subprocess.run(command(*arguments), env=environment(), capture_output=True, text=True)
    assert drill.returncode == 0, drill.stdout + drill.stderr
    names = [harm.name for harm in HARMS if harm.log not in ("scorers", "environment-")]
    for name in (*names, DISK_FULL):
        assert f"{name}: recovered" in drill.stdout
