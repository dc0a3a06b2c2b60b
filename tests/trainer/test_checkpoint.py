import asyncio
from pathlib import Path

import pytest

from rlhf.durable import synced
from rlhf.errors import CheckpointError, RunTaken
from rlhf.trainer.checkpoint import checkpoints, newest_checkpoint, prune, read_checkpoint, verify, write_checkpoint
from rlhf.types import Written


async def save(path: Path) -> dict[str, Written]:
    (path / "huggingface").mkdir()
    (path / "huggingface" / "config.json").write_text("{}")
    return synced(path, [path / "huggingface" / "config.json"])


async def broken_save(path: Path) -> dict[str, Written]:
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
    with pytest.raises(CheckpointError, match=r"damaged: huggingface/config\.json has 0, it should have 2 bytes"):
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


def test_a_file_that_the_controller_sees_otherwise_than_its_rank_wrote_it_makes_no_checkpoint(tmp_path: Path) -> None:
    async def elsewhere(path: Path) -> dict[str, Written]:
        return await save(path) | {"deepspeed/state.pt": Written(size=7, checksum="00")}

    with pytest.raises(CheckpointError, match=r"state\.pt is missing, its writer says 7 bytes"):
        asyncio.run(write_checkpoint(tmp_path, version=2, next_ordinal=0, outstanding=(), save=elsewhere))
    assert checkpoints(tmp_path) == []


def test_a_file_of_the_right_size_with_another_content_is_found_by_reading_it(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    verify(path, read_checkpoint(path))
    (path / "huggingface" / "config.json").write_bytes(bytes(2))
    with pytest.raises(CheckpointError, match=r"huggingface/config\.json has its size, but not its content"):
        verify(path, read_checkpoint(path))


def test_checkpoints_that_are_not_whole_neither_count_nor_go(tmp_path: Path) -> None:
    for version in (5, 400, 500):
        write(tmp_path, version)
    for version in (400, 500):
        (tmp_path / f"version-000{version}" / "manifest.json").unlink()
    prune(tmp_path, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["version-000005", "version-000400", "version-000500"]


def test_nothing_is_renamed_or_deleted_by_a_process_that_has_lost_the_folder(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)

    def lost() -> None:
        raise RunTaken("another's")

    with pytest.raises(RunTaken):
        prune(tmp_path, 1, lost)
    asked = iter([None, None, lost])  # lost between the save and the rename

    def lost_late() -> None:
        if check := next(asked):
            check()

    late = write_checkpoint(tmp_path, version=3, next_ordinal=0, outstanding=(), save=save, may_write=lost_late)
    with pytest.raises(RunTaken):
        asyncio.run(late)
    assert [path.name for path in checkpoints(tmp_path)] == ["version-000001", "version-000002"]
