import asyncio
from pathlib import Path

import pytest

from rlhf.errors import CheckpointError
from rlhf.trainer.checkpoint import checkpoints, newest_checkpoint, prune, read_checkpoint, write_checkpoint


async def save(path: Path) -> None:
    (path / "huggingface").mkdir()
    (path / "huggingface" / "config.json").write_text("{}")


async def broken_save(path: Path) -> None:
    await save(path)
    raise OSError("disk full")


def write(root: Path, version: int) -> Path:
    return asyncio.run(write_checkpoint(root, version=version, next_ordinal=7, outstanding=(3, 5), save=save))


def test_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    manifest = read_checkpoint(write(tmp_path, 10))
    assert (manifest.version, manifest.next_ordinal, manifest.outstanding) == (10, 7, (3, 5))
    assert manifest.files == {"huggingface/config.json": 2}


def test_one_that_broke_while_writing_is_not_listed_and_is_refused_by_name(tmp_path: Path) -> None:
    good = write(tmp_path, 1)
    with pytest.raises(OSError, match="disk full"):
        asyncio.run(write_checkpoint(tmp_path, version=2, next_ordinal=0, outstanding=(), save=broken_save))
    assert checkpoints(tmp_path) == [good]
    with pytest.raises(CheckpointError, match=r"writing-000002 is not a complete checkpoint: it has no manifest\.json"):
        read_checkpoint(tmp_path / "writing-000002")


def test_a_file_that_lost_bytes_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    (path / "huggingface" / "config.json").write_text("")
    with pytest.raises(CheckpointError, match=r"damaged: huggingface/config\.json should have 2 bytes and is 0 bytes"):
        read_checkpoint(path)
    (path / "huggingface" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        read_checkpoint(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}'])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, 1)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(path)


def test_the_newest_is_found_and_the_oldest_are_pruned(tmp_path: Path) -> None:
    for version in (2, 100, 30):
        write(tmp_path, version)
    (tmp_path / "writing-000101").mkdir()
    assert newest_checkpoint(tmp_path).name == "version-000100"
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version-000030", "version-000100"]


def test_no_checkpoint_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no finished checkpoint"):
        newest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "version-000001")


def test_writing_a_version_again_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, 1)
    assert read_checkpoint(write(tmp_path, 1)).version == 1
