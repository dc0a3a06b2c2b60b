"""`rlhf check MODEL` says in a second what is known of a model, and with `--prove` what is true of it here."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from rlhf.apps.cli.check_model import ALONE, PACKED, ROWS
from rlhf.models.config import TinyModelConfig
from rlhf.models.supported_families import Verdict, measurements
from rlhf.models.tiny import save_tiny
from tests.apps.cli.conftest import Command
from tests.apps.cli.test_bad_input import refusal
from tests.model_folders import CONFIG, PARAMETERS, change


def rows_of(said: str) -> dict[str, str]:
    return {line[:15].strip(): line[15:] for line in said.splitlines()}


def test_a_model_is_described_with_its_verdict_and_what_it_costs(rlhf: Command, model_folder: Path):
    ended = rlhf("check", model_folder, "model.dtype=bfloat16")
    assert ended.returncode == 0, ended.stderr
    assert rows_of(ended.stdout) == {
        "model": f"{model_folder}, bfloat16",
        "family": f"qwen2 (Qwen2ForCausalLM): {measurements().verdict_text(CONFIG)}",
        "parameters": str(PARAMETERS),
        "rows": PACKED,
        "context": "64 tokens",
        # Ranks hold weights of 2 bytes, and masters, gradients and two moments of 4.
        "a rank": f"at least {PARAMETERS * 18 / 2**30:.3g} GiB, with the optimizer's state",
        "an engine": rows_of(ended.stdout)["an engine"],
    }


@pytest.mark.parametrize("verdict", [*get_args(Verdict), None])
def test_how_rows_are_computed_follows_from_the_verdict(rlhf: Command, model_folder: Path, verdict: Verdict | None):
    measured = {one.verdict: family for family, one in measurements().families.items()}
    family = measured.get(verdict, "cpmant") if verdict else "cpmant"
    change(model_folder / "config.json", model_type=family)
    found = measurements().verdict({"model_type": family})
    ended = rlhf("check", model_folder)
    assert ended.returncode == 0, ended.stderr
    assert rows_of(ended.stdout)["rows"] == ROWS[found]


def test_a_broken_model_is_refused_as_by_a_recipe(rlhf: Command, model_folder: Path):
    (model_folder / "model.safetensors").unlink()
    assert f"{model_folder} has no weights" in refusal(rlhf, model_folder)
    (model_folder / "config.json").unlink()
    assert f"{model_folder} is not a model folder" in refusal(rlhf, model_folder)


def test_only_a_model_is_proved(rlhf: Command, recipe: Path):
    assert "--prove goes with a model folder" in refusal(rlhf, recipe, "--prove")


def test_a_model_is_proved_here(rlhf: Command, tmp_path: Path):
    folder = save_tiny(TinyModelConfig(hidden_size=64), 0, tmp_path / "tiny")
    ended = rlhf("check", folder, "--prove")
    assert rows_of(ended.stdout)["rows"] == f"{PACKED} (proved here)", ended.stderr
    never = rlhf("check", folder, "--prove", "trainer.packing=never")
    assert rows_of(never.stdout)["rows"] == f"{ALONE} (proved here: trainer.packing is never)"
