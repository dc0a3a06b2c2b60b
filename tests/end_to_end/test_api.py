"""The trainer from Python: everything after `fit` works in the same process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.running import QUICKSTART, RUN_SECONDS, SMALL, warm_environment
from tests.warm import client as warm

pytestmark = pytest.mark.engine

PROGRAM = """
import asyncio, itertools, json, sys, yaml
from rlhf import Trainer
from rlhf.config import parse_override

recipe, folder, *overrides = sys.argv[1:]
digits = ["".join(order) for order in itertools.permutations("12345")]
rows = [{"question": question, "answer": "12345"} for question in digits]

def in_order(response, row):
    return float(response == row["answer"])

async def main():
    settings = {"data": {"train": rows[8:], "eval": rows[:8]}, "reward": in_order, "run.dir": f"{folder}/run"}
    sections = yaml.safe_load(open(recipe)) | settings
    trainer = Trainer(sections, **dict(map(parse_override, overrides)))
    summary = trainer.fit()
    evaluation, reply, saved = trainer.evaluate(), trainer.predict("52431"), trainer.save(f"{folder}/saved")
    answers = {"fit": summary.eval_reward_end, "evaluate": evaluation.reward, "reply": reply, "saved": str(saved)}
    print(json.dumps(answers))

asyncio.run(main())
"""


def test_fit_evaluate_predict_and_save(cache: Path, tmp_path: Path) -> None:
    """In a running event loop, as in a notebook, with rows and a reward of the program. `evaluate` starts Ray a second
    time; `predict` starts an engine in this process."""
    small = (override for override in SMALL if not override.startswith("data."))
    overrides = (f"model.cache_dir={cache}", "trainer.updates=2", *small)
    program = ("-c", PROGRAM, QUICKSTART, tmp_path, *overrides)
    ended = warm.run(program, environment=warm_environment(), timeout=RUN_SECONDS)
    assert ended.returncode == 0, ended.stderr[-4000:]
    answers = json.loads(ended.stdout.splitlines()[-1])
    assert answers["evaluate"] == answers["fit"]
    assert sorted(answers["reply"]) == sorted("52431")
    assert (Path(answers["saved"]) / "model.safetensors").is_file()
    assert f"| {answers['fit']:.4g} |" in (Path(answers["saved"]) / "README.md").read_text()
    assert ended.stderr == ""
