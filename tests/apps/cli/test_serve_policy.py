"""`rlhf serve policy` refuses what it cannot do before anything heavy starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhf.apps.cli.serve_policy import ENDINGS, PolicySettings, serve_model
from tests.apps.cli.conftest import Command


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--host", "0.0.0.0"), "a token is required"),
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


def test_a_signal_ends_the_server_at_once_while_its_engine_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def loads(model: str, work: object, *, structured: bool) -> int:
        for ending in ENDINGS:
            signal.raise_signal(ending)
        return 0

    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setitem(sys.modules, "rlhf.controller.inference", SimpleNamespace(served_here=loads))
    before = {ending: signal.getsignal(ending) for ending in ENDINGS}
    try:
        asyncio.run(serve_model("model", "model", None, PolicySettings()))
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)
    assert ended == [130, 143]
