"""Well-known models are planned by what is kept of their modules, and that is what their modules say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlhf.recipe.model_configs import known_models
from rlhf.recipe.planning.known_shapes import STORED_TOKENS, known_model
from tests.end_to_end.running import ROOT
from tests.goldens.known_shapes.measured import MEMORY, measured, passes

MIXTURE, LARGE = "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.3-70B-Instruct"
OTHERS = [name for name in known_models() if name not in (MIXTURE, LARGE)]


def test_a_well_known_model_is_planned_without_any_heavy_library() -> None:
    heavy = "{'torch', 'transformers', 'deepspeed', 'ray', 'vllm', 'datasets'}"
    plan = "['plan', 'recipes/llama_70b_16_nodes.yaml', '--gpus', '8x80GB', '--nodes', '16']"
    script = (
        f"import atexit, sys, rlhf.apps.cli.main; atexit.register(lambda: print({heavy} & set(sys.modules))); "
        f"sys.argv[1:] = {plan}; rlhf.apps.cli.main.main()"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[-2:] == ["it fits", "set()"], ended.stderr


@pytest.mark.parametrize("name", [MIXTURE, LARGE, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_what_is_kept_of_a_model_is_what_its_modules_say(name: str) -> None:
    values = known_models()[name]
    assert known_model(name, values) == measured(name, values)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_rows_of_other_lengths_hold_what_is_kept(checkpointing: bool) -> None:
    values = known_models()[MIXTURE]
    kept = known_model(MIXTURE, values)
    assert kept
    short = passes(values, checkpointing=checkpointing, lengths=(512, 1024, 2))
    assert kept.activations(checkpointing=checkpointing, memory=MEMORY).peak(STORED_TOKENS) == pytest.approx(
        short.peak(STORED_TOKENS), rel=0.02
    )


def test_nothing_is_kept_of_a_model_with_another_configuration() -> None:
    assert known_model(LARGE, known_models()[LARGE] | {"num_hidden_layers": 79}) is None
