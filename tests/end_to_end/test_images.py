"""Runs on images: by reward, by demonstrations and by pairs, with exports that transformers computes alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from recipes.tasks import quadrant
from rlhf.chat.image_reader import opened
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.runs.episode_parts import read_episodes
from tests.data.test_row_images import ROWS, llava, png, trl, verl, write
from tests.end_to_end.running import ROOT, Run, largest_difference, run_warm, train
from tests.end_to_end.test_resume import died_at_its_end, same_to_the_bit

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
QUADRANT = ROOT / "recipes" / "quadrant.yaml"
SHORT = (
    "model.warmup.updates=10", "trainer.groups_per_update=8", "trainer.group_size=4", "trainer.eval_every=0",
    "data.eval.arguments.rows=16", "trainer.updates=4", "trainer.save_every=2", "trainer.keep_checkpoints=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    """A run with a checkpoint in its middle."""
    return train(tmp_path_factory.mktemp("runs") / "whole", cache, *SHORT, recipe=QUADRANT)


def test_engine_and_learner_agree_on_every_token_that_an_image_led_to(whole: Run) -> None:
    assert largest_difference(whole.episodes) <= 1e-4
    assert max(line["weight_sync/logprob_difference"] for line in whole.metrics) <= 1e-4


def test_the_export_computes_what_was_sampled_from_it(whole: Run) -> None:
    """Replies of the last evaluation, by transformers' processor and model of the exported folder."""
    model = AutoModelForImageTextToText.from_pretrained(whole.model, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(whole.model)
    tasks = {task.id: task for task in quadrant.tasks(rows=16, split="eval")}
    records = [one for one in read_episodes(whole.folder / "evaluations") if one.admitted_version == 4]
    assert len(records) == 16
    for record in records:
        (message,) = tasks[record.task].messages
        picture = opened(message.images[0].data)
        parts = [{"type": "image"}, {"type": "text", "text": "dark?"}]
        text = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
        given = processor(text=[text], images=[picture], return_tensors="pt")
        asked = given["input_ids"].shape[1]
        assert record.token_ids is not None
        assert record.behaviour_logprobs is not None
        assert record.token_ids[:asked].tolist() == given["input_ids"][0].tolist()
        reply = torch.from_numpy(record.token_ids[asked:]).long()
        ids = torch.cat([given["input_ids"], reply[None]], 1)
        kinds = torch.cat([given["mm_token_type_ids"], torch.zeros_like(reply)[None]], 1)
        with torch.no_grad():
            logits = model(
                input_ids=ids, mm_token_type_ids=kinds, pixel_values=given["pixel_values"],
                image_grid_thw=given["image_grid_thw"],
            ).logits[0, asked - 1 : -1]  # fmt: skip
        assert (logits.argmax(-1) == reply).all(), "the evaluation is greedy"


def test_a_run_on_images_that_stopped_goes_on_bit_for_bit(whole: Run, tmp_path: Path, cache: Path) -> None:
    died = died_at_its_end(whole, tmp_path / "died")
    resumed = train(died, cache, *SHORT, "--resume", recipe=QUADRANT)
    assert "resuming from version-000002: 2 of 4 updates are done" in (died / "logs" / "controller.log").read_text()
    assert same_to_the_bit(resumed, whole)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("swapped", "the engine has other pixels than the learner for image"),
        pytest.param("resized", "vLLM makes 13 tokens of a prompt that has 16 tokens", marks=pytest.mark.slow),
        pytest.param("doubled", "tokens for the learner: its 1 images take others there", marks=pytest.mark.slow),
        pytest.param("lost", "the prompt has 4 tokens of images, and its 0 images are 0", marks=pytest.mark.slow),
    ],
)
def test_a_fault_on_one_side_ends_the_run_in_its_first_update(
    whole: Run, fault: str, told: str, tmp_path: Path, cache: Path
) -> None:
    planted = ("data.train.tasks=tests.end_to_end.image_faults:tasks", f"data.train.arguments.fault={fault}")
    arguments = ("train", str(QUADRANT), f"run.dir={tmp_path}", f"model.cache_dir={cache}", *SHORT, *planted)
    ended = run_warm(*arguments)
    assert ended.returncode in (1, 2)
    assert told in ended.stdout + ended.stderr
    assert "update  1/4" not in ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TinyModelConfig(architecture="qwen3_vl", hidden_size=64, intermediate_size=128, layers=1)
    return save_tiny(config, 0, tmp_path_factory.mktemp("sees") / "model")


def recipe(folder: Path, model: Path, kind: str, **data: object) -> Path:
    """A recipe of one update on the rows of a file."""
    written = {
        "kind": kind,
        "model": {"path": str(model), "tower": "frozen"},
        "data": {"train": data},
        "trainer": {"updates": 1, "groups_per_update": 8},
        "cluster": {"kind": "local"},
    }
    (folder / "recipe.yaml").write_text(json.dumps(written))
    return folder / "recipe.yaml"


def test_demonstrations_in_the_shape_of_llava_are_learnt(tmp_path: Path, cache: Path, sees: Path) -> None:
    file = write(tmp_path, [llava(n, png((60 + n, 56)), tmp_path) for n in range(ROWS)])
    given = recipe(tmp_path, sees, "sft", path=str(file), prompt_column="conversations", answer_column=None)
    run = train(tmp_path / "run", cache, recipe=given)
    assert np.isfinite(run.metrics[0]["sft/nll"])


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "answer"), [(verl, "reward_model.ground_truth"), (trl, "answer")])
def test_rows_of_verl_and_trl_are_trained_on(
    shape: Callable[..., dict[str, Any]], answer: str, tmp_path: Path, cache: Path, sees: Path
) -> None:
    file = write(tmp_path, [shape(n, png((60 + n, 56)), tmp_path) for n in range(ROWS)])
    given = recipe(tmp_path, sees, "rl", path=str(file), prompt_column="prompt", answer_column=answer)
    small = ("trainer.group_size=2", "sampling.max_tokens=4", "reward.kind=exact")
    run = train(tmp_path / "run", cache, *small, recipe=given)
    assert largest_difference(run.episodes) <= 1e-4
    assert run.summary["samples"] == 16


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["preference", "reward_model"])
def test_pairs_with_images_are_learnt(kind: str, tmp_path: Path, cache: Path, sees: Path) -> None:
    sides = [("chosen", "yes"), ("rejected", "no")]
    rows = [
        {side: f"\n\nHuman: which {n}?\n\nAssistant: {reply}" for side, reply in sides}
        | {"images": [{"bytes": png((60 + n, 56))}]}
        for n in range(ROWS)
    ]
    file = write(tmp_path, rows)
    given = recipe(tmp_path, sees, kind, path=str(file), chosen_column="chosen", rejected_column="rejected")
    run = train(tmp_path / "run", cache, recipe=given)
    assert np.isfinite(run.metrics[0]["pairs/loss"])


def test_images_without_a_tower_and_a_tower_without_one_are_refused_at_once(tmp_path: Path, cache: Path) -> None:
    without = run_warm("train", str(QUADRANT), f"run.dir={tmp_path / 'run'}", f"model.cache_dir={cache}", *SHORT[1:],
                       "model.warmup=null", "model.tower=null")  # fmt: skip
    assert without.returncode == 2
    assert "the model runs without its tower; set model.tower: frozen (or trained)" in without.stdout + without.stderr
    blind = run_warm("train", str(QUADRANT), "model.tiny.architecture=qwen3")
    assert blind.returncode == 2
    assert "model.tower: qwen3 has none; set tiny.architecture: qwen3_vl" in blind.stdout + blind.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_recipe_learns_to_look_and_its_control_does_not(tmp_path: Path, cache: Path) -> None:
    learnt = train(tmp_path / "learnt", cache, recipe=QUADRANT).summary
    assert learnt["eval_reward_start"] < 0.3
    assert learnt["eval_reward_end"] >= 0.9
    shuffled = ("data.train.arguments.shuffled=true", "data.eval.arguments.shuffled=true")
    assert train(tmp_path / "control", cache, *shuffled, recipe=QUADRANT).summary["eval_reward_end"] < 0.4
