"""Callbacks as docs/callbacks.md has them, in the smallest real run of every kind; and `Trainer.from_checkpoint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import RUN_SECONDS, warm_environment
from tests.warm import client as warm

pytestmark = pytest.mark.engine

PROGRAM = """
import json, sys
from pathlib import Path

from rlhf import Callback, Trainer
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from tests.small_tasks import sorting, sorting_pairs

folder = Path(sys.argv[1])
save_tiny(TinyModelConfig(hidden_size=64, intermediate_size=128, heads=2, kv_heads=1), 0, folder / "start")
kinds = {
    "rl": {
        "data": {"train": sorting(digits=3, rows=64), "eval": sorting(digits=3, split="eval", rows=4)},
        "reward": {"kind": "function", "function": "tests.end_to_end.rewards:varied"},
    },
    "distill": {"data": {"train": sorting(digits=3, rows=64)}, "trainer": {"reference_path": str(folder / "rl")}},
    "offline": {"data": {"episodes": str(folder / "rl")}},
    "sft": {"data": {"train": sorting(digits=3, rows=64) | {"response_column": "answer"}}},
    "preference": {"data": {"train": sorting_pairs(), "eval": sorting_pairs() | {"trained_on": True, "limit": 4}}},
    "reward_model": {"data": {"train": sorting_pairs(), "eval": sorting_pairs() | {"trained_on": True, "limit": 4}}},
}


class Tells(Callback):
    def __init__(self):
        self.told = []

    def on_train_begin(self, run):
        self.told.append(f"begin {run.version}")

    async def on_step_end(self, run):
        run.metrics["mine"] = float(run.version)
        self.told.append(f"step {run.version}")
        if run.version == 1:
            await run.save()
            await run.export(run.folder.path / "exported")
        if run.version == 2:
            run.stop("enough")

    async def on_evaluate(self, run, evaluation):
        self.told.append(f"evaluate {run.version} {len(evaluation.metrics) > 0} {run.evaluation is evaluation}")

    def on_save(self, run, checkpoint):
        self.told.append(f"save {checkpoint.name} {run.saved_version}")

    def on_train_end(self, run, summary):
        self.told.append(f"end {summary.outcome} {(run.folder.path / 'summary.json').is_file()}")


def small(kind):
    trainer = {"updates": 3, "groups_per_update": 4, "group_size": 2, "save_every": 0, "save_every_minutes": 0}
    settings = {"model": {"path": str(folder / "start")}, "sampling": {"max_tokens": 4}, "cluster": {"kind": "local"}}
    sections = {"kind": kind, "name": kind, "run": {"dir": str(folder / kind)}, **settings, **kinds[kind]}
    return {**sections, "trainer": trainer | sections.get("trainer", {})}


for kind in sys.argv[2:]:
    tells = Tells()
    Trainer(small(kind), callbacks=[tells]).fit()
    rows = [json.loads(line) for line in (folder / kind / "metrics.jsonl").open()]
    exported = all((folder / kind / "exported" / name).is_file() for name in ("model.safetensors", "README.md"))
    print('ANSWER', json.dumps({"told": tells.told, "mine": [row["mine"] for row in rows], "exported": exported}))
if "rl" in sys.argv:
    trainer = Trainer.from_checkpoint(folder / "rl" / "checkpoints" / "version-000001", "trainer.updates=4")
    reply, reward = trainer.predict("321", max_tokens=4), trainer.evaluate().reward
    going_on = Trainer.from_checkpoint(folder / "rl", "trainer.updates=4")
    print('ANSWER', json.dumps([isinstance(reply, str), isinstance(reward, float), going_on.fit(resume=True).updates]))
"""
EVALUATING = ("rl", "preference", "reward_model")


def program(folder: Path, *kinds: str) -> list[Any]:
    ended = warm.run(("-c", PROGRAM, folder, *kinds), environment=warm_environment(), timeout=RUN_SECONDS)
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = ended.stdout.splitlines()
    return [json.loads(line.removeprefix("ANSWER ")) for line in lines if line.startswith("ANSWER ")]


def test_every_kind_calls_back_as_documented_and_a_trainer_begins_from_a_checkpoint(tmp_path: Path) -> None:
    kinds = ("rl", "distill", "offline", "sft", "preference", "reward_model")
    *runs, begun = program(tmp_path, *kinds)
    for kind, run in zip(kinds, runs, strict=True):
        first, last = (["evaluate 0 True True"], ["evaluate 2 True True"]) if kind in EVALUATING else ([], [])
        saved = ["step 1", "save version-000001 1", "step 2", *last, "save version-000002 2"]
        assert run["told"] == ["begin 0", *first, *saved, "end finished: enough True"], kind
        assert (run["mine"], run["exported"]) == ([1.0, 2.0], True), kind
    assert begun == [True, True, 4]
