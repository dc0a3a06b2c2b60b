import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import ModelError
from rlhf.models.config import ModelConfig, TinyModelConfig, WarmupConfig
from rlhf.models.start import start_folder, start_model

TINY = TinyModelConfig(hidden_size=32, intermediate_size=32, layers=1, heads=1)


class CountingWarmUp:
    """Stands for the training: copies the raw model and leaves a mark."""

    def __init__(self, fails: bool = False) -> None:
        self.calls, self.fails = 0, fails

    async def __call__(self, raw: Path, warm: Path) -> None:
        self.calls += 1
        shutil.copytree(raw, warm)
        if self.fails:
            raise RuntimeError("out of cheese")


def config(cache: Path, updates: int = 3) -> ModelConfig:
    return ModelConfig(
        tiny=TINY,
        warmup=WarmupConfig(demonstrations="recipes.tasks.sorting:demonstrations", updates=updates),
        cache_dir=str(cache),
    )


def made(model: ModelConfig, warm_up: CountingWarmUp, seed: int = 0) -> Path:
    return Path(asyncio.run(start_model(model, seed=seed, demonstrations={"digits": 5}, warm_up=warm_up)))


def test_a_missing_start_model_is_made_once_and_then_found(tmp_path: Path) -> None:
    warm_up = CountingWarmUp()
    first, second = made(config(tmp_path), warm_up), made(config(tmp_path), warm_up)
    assert first == second
    assert warm_up.calls == 1
    assert (first / "config.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_a_warm_up_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cheese"):
        made(config(tmp_path), CountingWarmUp(fails=True))
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_one_line_unless_the_model_is_in_it(tmp_path: Path) -> None:
    warm_up, missing = CountingWarmUp(), tmp_path / "file" / "cache"
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"cannot be made in .*file/cache \(Not a directory\); set model\.cache_dir"):
        made(config(missing), warm_up)
    found = made(config(tmp_path), warm_up)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", read_only)
        assert made(config(tmp_path), warm_up) == found
        with pytest.raises(ModelError, match="Read-only file system"):
            made(config(tmp_path, updates=4), warm_up)


def read_only(*arguments: Any, **named: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_whatever_decides_the_weights_decides_the_folder(tmp_path: Path) -> None:
    base = config(tmp_path)
    folders = {
        start_folder(base, seed=0, demonstrations={"digits": 5}),
        start_folder(base, seed=1, demonstrations={"digits": 5}),
        start_folder(base, seed=0, demonstrations={"digits": 6}),
        start_folder(config(tmp_path, updates=4), seed=0, demonstrations={"digits": 5}),
        start_folder(ModelConfig(tiny=TINY, cache_dir=str(tmp_path)), seed=0, demonstrations={"digits": 5}),
        start_folder(base.model_copy(update={"dtype": "bfloat16"}), seed=0, demonstrations={"digits": 5}),
    }
    assert len(folders) == 6
    assert start_folder(base, seed=0, demonstrations={"digits": 5}) in folders


@pytest.mark.parametrize(
    ("path", "found"), [("somebody/model", Path("somebody/model")), ("~/model", Path.home() / "model")]
)
def test_a_given_model_is_used_as_it_is_and_may_be_in_the_home_folder(path: str, found: Path) -> None:
    assert made(ModelConfig(path=path), CountingWarmUp()) == found
