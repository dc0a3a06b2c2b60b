"""`rlhf serve policy` refuses what it cannot do before anything heavy starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.conftest import Command


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--host", "0.0.0.0"), "there is no token"),
        (("--token-env", "NO_SUCH_TOKEN"), "NO_SUCH_TOKEN"),
        (("--tool-format", "xml"), "--tool-format is 'xml'"),
        (("--tool-format", "nowhere:read"), "nowhere"),
        (("--client-stop", "sometimes"), "'sometimes' is not one of"),
        (("--trajectories", "no/such/folder/episodes.jsonl"), "there is no such folder"),
        (("--trajectories", "small.jsonl"), "--trajectories small.jsonl exists"),
        (("--max-tokens", "0"), "max-tokens"),
    ],
)
def test_a_wrong_option_is_told_in_a_line(
    rlhf: Command, model_folder: Path, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    (tmp_path / "small.jsonl").touch()
    ended = rlhf("serve", "policy", model_folder, *options)
    assert ended.returncode == 2
    assert told in ended.stderr


def test_a_folder_without_a_model_is_told(rlhf: Command, tmp_path: Path) -> None:
    ended = rlhf("serve", "policy", tmp_path / "nothing")
    assert ended.returncode == 2
    assert "nothing" in ended.stderr
