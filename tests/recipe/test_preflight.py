"""Bounds that a recipe keeps, to the last token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf.data.config import DatasetConfig
from rlhf.errors import ConfigError, DataError, ModelError
from rlhf.recipe import preflight
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.preflight import check_context, check_dataset, check_devices, check_heads, check_pieces
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import roles_of, transfer_backend
from tests.small_tasks import sorting


def recipe(**values: object) -> Recipe:
    given = {"model": {"path": "a/b"}, "data": {"train": sorting(), "eval": sorting(split="eval")}}
    return recipe_from(given | values).recipe


def test_a_reply_is_shorter_than_the_context_for_something_is_asked() -> None:
    check_context(recipe(sampling={"max_tokens": 99}), 100)
    with pytest.raises(ConfigError, match=r"sampling\.max_tokens is 100, but the context of a/b is 100 tokens"):
        check_context(recipe(sampling={"max_tokens": 100}), 100)


def test_an_episode_may_fill_the_context_and_not_pass_it() -> None:
    check_context(recipe(sampling={"max_tokens": 8}, rollout={"max_context_tokens": 100}), 100)
    with pytest.raises(ConfigError, match=r"rollout\.max_context_tokens is 101, longer than the context"):
        check_context(recipe(sampling={"max_tokens": 8}, rollout={"max_context_tokens": 101}), 100)


def test_a_model_that_does_not_say_its_context_is_believed() -> None:
    check_context(recipe(sampling={"max_tokens": 10**6}), None)


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("trainer.loss.policy", {"trainer": {"loss": {"policy": "no_such_pieces:own"}}}),
        ("trainer.advantage.estimator", {"trainer": {"advantage": {"estimator": "no_such_pieces:own"}}}),
        ("callbacks.1", {"callbacks": ["rlhf.controller.provided_callbacks:BestCheckpoint", "no_such_pieces:Own"]}),
    ],
)
def test_a_piece_whose_module_is_nowhere_is_told_before_anything_is_imported(
    setting: str, parts: dict[str, Any]
) -> None:
    given = recipe(**parts)
    with pytest.raises(ConfigError, match=f"^{setting} is no_such_pieces:.*, but there is no module no_such_pieces"):
        check_pieces(given)


def test_every_row_of_a_small_file_is_read_and_the_first_of_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "rows.jsonl").write_text('{"question": "?", "answer": "4"}\n{"question": "?"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, row 2 has no column 'answer'"):
        check_dataset(DatasetConfig(path=str(file)))
    monkeypatch.setattr(preflight, "READ_BYTES", file.stat().st_size - 1)
    check_dataset(DatasetConfig(path=str(file)))


def on_gpus(kind: str, backend: str = "auto", share: float = 1) -> Recipe:
    """One rank and one engine, each with this share of a GPU."""
    return recipe(
        cluster={"kind": kind},
        trainer={"deepspeed": {"gpus_per_rank": share}, "weight_sync": {"backend": backend}},
        rollout={"gpus_per_engine": share},
    )


@pytest.mark.parametrize("share", [1, 0.5])
def test_within_one_process_weights_travel_by_gloo_on_gpus_too(share: float) -> None:
    assert transfer_backend(on_gpus("local", share=share)) == "gloo"
    assert transfer_backend(on_gpus("ray", share=share)) == ("nccl" if share == 1 else "ipc")
    check_devices(on_gpus("local", share=share))


def test_ipc_between_gpus_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"weight_sync\.backend is ipc, by which a rank sends to an engine"):
        check_devices(on_gpus("ray", "ipc"))


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_what_joins_processes_is_refused_by_name_within_one(backend: str) -> None:
    check_devices(on_gpus("ray", backend, share=0.5))
    with pytest.raises(
        ConfigError, match=rf"weight_sync\.backend is {backend}, but cluster\.kind: local .* one process"
    ):
        check_devices(on_gpus("local", backend))


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_memory_that_ipc_cannot_share_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:512, expandable_segments:True")
    check_devices(on_gpus("ray"))
    with pytest.raises(ConfigError, match=rf"{name} has expandable_segments:True, but weights travel by ipc"):
        check_devices(on_gpus("ray", share=0.5))
    monkeypatch.setenv(name, "expandable_segments:False")
    check_devices(on_gpus("ray", share=0.5))


def test_a_rank_on_a_gpu_has_one_thread() -> None:
    assert roles_of(on_gpus("ray"))[0].concurrency == 1


def test_buckets_are_larger_on_a_gpu_unless_the_recipe_says_how_large() -> None:
    auto = recipe().trainer.weight_sync
    assert (auto.bucket_bytes(on_gpu=False), auto.bucket_bytes(on_gpu=True)) == (32 * 2**20, 256 * 2**20)
    chosen = recipe(trainer={"weight_sync": {"bucket_megabytes": 0.5}}).trainer.weight_sync
    assert chosen.bucket_bytes(on_gpu=True) == chosen.bucket_bytes(on_gpu=False) == 2**19


QWEN = {"num_attention_heads": 28, "num_key_value_heads": 4}


def check_heads_of(config: dict[str, Any], **values: object) -> None:
    check_heads(recipe(**values), config)


@pytest.mark.parametrize("sizes", [1, 2, 4, 28, [1, 2]])
def test_sizes_that_share_heads_evenly_pass(sizes: int | list[int]) -> None:
    check_heads_of(QWEN, rollout={"tensor_parallel_size": sizes})


@pytest.mark.parametrize("sizes", [3, 8, 14, [1, 8]])
def test_others_are_refused_with_those_that_do(sizes: int | list[int]) -> None:
    with pytest.raises(ConfigError, match=r"has 28 attention heads and 4 key/value heads.*; use one of 1, 2, 4, 28$"):
        check_heads_of(QWEN, rollout={"tensor_parallel_size": sizes})


def test_ranks_that_share_rows_are_held_to_the_same() -> None:
    deepspeed = {"ranks": 8, "sequence_parallel": 8}
    with pytest.raises(ConfigError, match=r"trainer\.deepspeed\.sequence_parallel is 8, but the model has 28"):
        check_heads_of(QWEN, trainer={"deepspeed": deepspeed})
    check_heads_of({"text_config": {"num_attention_heads": 8}}, trainer={"deepspeed": deepspeed})


def test_a_model_that_does_not_say_its_heads_is_believed() -> None:
    check_heads_of({}, rollout={"tensor_parallel_size": 3})


def test_a_cache_that_torch_cannot_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "made" / "below"))
    preflight.check_cache()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match=r"DIR=\S+/file/below cannot be created \(Not a directory\)"):
        preflight.check_cache()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/proc/self")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="TORCHINDUCTOR_CACHE_DIR=/proc/self cannot be written"):
        preflight.check_cache()


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"model": {"path": "a/b", "tower": "trained", "lora": {"rank": 4}}}, "adapters of the language part alone"),
        ({"model": {"tiny": {"architecture": "qwen2"}, "tower": "frozen"}}, "qwen2 has none; set tiny.architecture"),
        (
            {"model": {"path": "a/b", "tower": "frozen"},
             "trainer": {"deepspeed": {"ranks": 2, "sequence_parallel": 2}}},
            "compute text alone; use sequence_parallel: 1",
        ),
    ],
)  # fmt: skip
def test_a_tower_that_cannot_be_used_is_refused_at_once(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        recipe(**parts)


def test_a_model_without_a_tower_cannot_be_shown_images(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "num_attention_heads": 2}')
    with pytest.raises(
        ModelError, match=r"its config.json has no vision_config, so it cannot see; remove model\.tower"
    ):
        preflight.check_model_folder(recipe(model={"path": str(tmp_path), "tower": "frozen"}))
