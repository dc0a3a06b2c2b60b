"""A program of TRL with two rewards, and rewards as users of verl, verifiers and OpenRLHF write them, from their files
to trained updates."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from rlhf.apps.cli.translate import run_translate
from tests.apps.translation.test_translate import CONFIGURATIONS
from tests.end_to_end.running import QUICKSTART, train

pytestmark = pytest.mark.engine

FUNCTIONS = ("verl", "verifiers", "reward_func", "diversity")


def test_two_updates_are_trained_on_the_functions_of_four_projects(tmp_path: Path, cache: Path) -> None:
    numbers = ["".join(random.Random(seed).sample("123456789", 4 + (seed % 8 > 0))) for seed in range(64)]
    rows = [{"number": one, "answer": "".join(sorted(one)), "data_source": "gsm8k"} for one in numbers]
    (tmp_path / "numbers.json").write_text(json.dumps(rows))
    program, recipe = tmp_path / "sorting.py", tmp_path / "recipe.yaml"
    program.write_text(
        (CONFIGURATIONS / "trl_sorting.py").read_text().replace("numbers.json", f"{tmp_path}/numbers.json")
    )
    assert run_translate(program, recipe, gpus=1) == 0
    model = yaml.safe_load(QUICKSTART.read_text())["model"] | {"gradient_checkpointing": False, "dtype": "float32"}
    others = [
        f"reward.parts.{name}={{kind: function, function: 'tests.reward.users_rewards:{name}'}}" for name in FUNCTIONS
    ]
    run = train(
        tmp_path / "run", cache, f"model={json.dumps(model)}", "cluster.kind=local", "rollout.gpus_per_engine=0",
        "trainer.deepspeed.gpus_per_rank=0", "trainer.groups_per_update=8", *others, recipe=recipe,
    )  # fmt: skip
    trained = [one for one in run.episodes if one.outcome == "trained"]
    assert len(trained) == 2 * 8 * 4
    for one in trained:
        assert len(one.answer or "") == 5  # the program's filter
        assert one.prompt[0] == {"role": "system", "content": "Sort the digits.\nReply with the digits only."}
        right, parts = one.response == one.answer, dict(one.reward_parts)
        assert {parts.pop(name) for name in ("verl", "verifiers", "reward_func", "accuracy_reward")} == {float(right)}
        form = one.response.isascii() and one.response.isdigit()
        assert one.reward == pytest.approx(4 * right + 0.5 * form + parts["diversity"])
