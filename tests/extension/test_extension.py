"""What CONTRIBUTING.md says of adding pieces, followed to the letter in a folder outside the package: its files are
written as they stand there, and trained with."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlhf.apps.cli.main import app
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.records import EpisodeRecord
from tests.pace import scaled
from tests.warm import client as warm

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
FILE = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PIECES = {"my_loss.py", "my_estimator.py", "my_reward.py", "my_adapter.py", "my_callback.py", "my_kind.py"}

THEIRS = '''
class Echo:
    """What somebody else's package might have: a game that pays a point for every different letter."""

    def start(self, seed):
        return f"say {seed % 10}"

    def move(self, words):
        return "well said", float(len(set(words))), True


def make(game):
    return {"echo": Echo}[game]()
'''


def documented() -> dict[str, str]:
    """The files of the section by their names."""
    section = PAGE.read_text().split("## How to add", 1)[1]
    return dict(FILE.findall(section))


def run(folder: Path, recipe: str, *overrides: str) -> Path:
    """Train the recipe in its folder; the run folder."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = ("-m", "rlhf", "train", recipe, f"model.cache_dir={folder / 'models'}", *overrides)
    ended: subprocess.CompletedProcess[str]
    ended = warm.run(arguments, environment=environment, timeout=scaled(240), folder=folder)
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return folder / "runs" / Path(recipe).stem


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one's own, with every documented file that is not the package's."""
    made = tmp_path_factory.mktemp("outside")
    for name, source in documented().items():
        if "/" not in name:
            (made / name).write_text(source)
    (made / "their_package.py").write_text(THEIRS)
    return made


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """An untrained model says any byte: one in eight ends its reply, so that most replies have an end."""
    return run(folder, "my_recipe.yaml", f"sampling.stop_token_ids={list(range(64, 96))}", "sampling.max_tokens=16")


@pytest.fixture(scope="module")
def episodes(trained: Path) -> list[EpisodeRecord]:
    return list(read_episodes(trained / "episodes"))


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_piece_is_one_file() -> None:
    assert set(documented()) >= PIECES | {"my_recipe.yaml", "my_kind.yaml"}


@pytest.mark.engine
def test_the_loss_is_the_one_that_was_learnt_from(trained: Path) -> None:
    (update,) = metrics(trained)
    assert 0 <= update["my_gate"] < 1e-3, "the policy is the one that sampled"
    assert update["optimizer/grad_norm"] > 0


@pytest.mark.engine
def test_the_adapter_s_game_and_the_reward_both_count(episodes: list[EpisodeRecord]) -> None:
    played = [episode for episode in episodes if episode.status == "terminated"]
    assert len(played) >= len(episodes) / 2
    for episode in played:
        asked, said, heard = (message["content"] for message in episode.conversation or ())
        assert (asked[:4], heard) == ("say ", "well said")
        assert episode.reward == pytest.approx(float(len(set(said))) - 0.01 * len(said))


@pytest.mark.engine
def test_the_estimator_s_advantages_are_those_that_were_trained(episodes: list[EpisodeRecord]) -> None:
    for ordinal in {episode.ordinal for episode in episodes}:
        group = [episode for episode in episodes if episode.ordinal == ordinal]
        rewards = np.array([episode.reward for episode in group])
        expected = 2.0 * (rewards - np.median(rewards))
        np.testing.assert_allclose([episode.advantage for episode in group], expected, atol=1e-6)


@pytest.mark.engine
def test_the_callback_was_called_after_the_update(trained: Path) -> None:
    (update,) = metrics(trained)
    assert (trained / "diary.txt").read_text() == f"1 {update['reward/mean']:.3f}\n"


@pytest.mark.engine
def test_the_kind_of_run_learns_leaves_a_run_folder_and_is_resumed(folder: Path, trained: Path) -> None:
    own = run(folder, "my_kind.yaml")
    learnt = [update["sft/nll"] for update in metrics(own)]
    assert learnt[-1] < learnt[0] - 0.1, "beyond what batches differ by"
    assert json.loads((own / "summary.json").read_text())["outcome"] == "finished"
    assert any((own / "checkpoints").glob("version-*/huggingface"))
    assert "replies to imitate" in (own / "logs" / "controller.log").read_text()
    run(folder, "my_kind.yaml", "trainer.updates=5", "--resume")
    *before, last = (update["sft/nll"] for update in metrics(own))
    assert before == learnt
    assert last < learnt[-1]


@pytest.mark.engine
def test_the_command_is_one_of_the_command_line(trained: Path, episodes: list[EpisodeRecord]) -> None:
    files = documented()
    names: dict[str, Any] = {"app": app}
    before = list(app.registered_commands)
    exec(files["rlhf/apps/cli/longest.py"], names)
    exec(files["rlhf/apps/cli/main.py"], names)
    try:
        told = CliRunner().invoke(app, ["longest", str(trained), "--count", "2"])
    finally:
        app.registered_commands[:] = before
    assert told.exit_code == 0, told.output
    lengths = sorted((len(episode.response or "") for episode in episodes), reverse=True)
    assert [int(line.split()[0]) for line in told.output.splitlines()] == lengths[:2]
