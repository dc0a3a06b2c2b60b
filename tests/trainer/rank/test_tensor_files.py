"""Files of tensors that are written one by one and read in parts are what safetensors writes and reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf.errors import CheckpointError
from rlhf.trainer.rank import tensor_files
from rlhf.trainer.rank.state_slices import MASTER, SliceIndex, StateSlice, write_slices
from rlhf.trainer.rank.tensor_files import CODES, TensorWriter, cut_files, stored_tensors
from rlhf.weight_sync.types import TensorSpec


def made(dtype: str, *shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(getattr(torch, dtype))


def written(file: Path, tensors: dict[str, torch.Tensor]) -> Path:
    specs = [
        TensorSpec(name=name, dtype=str(one.dtype).removeprefix("torch."), shape=tuple(one.shape))
        for name, one in tensors.items()
    ]
    writer = TensorWriter(file, specs, {})
    for tensor in tensors.values():
        writer.write(tensor)
    writer.close()
    return file


def test_what_is_written_one_by_one_is_a_safetensors_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "AT_ONCE", 4)  # tensors go to disk in several parts
    tensors = {dtype: made(dtype, 3, 5) for dtype in CODES} | {"number": made("float32"), "none": made("float32", 0)}
    tensors["turned"] = made("float32", 3, 5).T
    found = load_file(written(tmp_path / "deep" / "file.safetensors", tensors))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_range_is_read_into_its_place_in_any_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "AT_ONCE", 3)
    file = written(tmp_path / "a.safetensors", {"first": made("float32", 7), "second": made("float32", 20)})
    second = next(one for one in stored_tensors(file)[0] if one.name == "second")
    for dtype in (torch.float32, torch.bfloat16):
        target = torch.full((10,), -1, dtype=dtype)
        second.read(6, target[1:9])
        assert target.tolist() == [-1, *range(6, 14), -1]


def test_a_file_that_is_cut_short_or_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "a.safetensors", {"a": made("float32", 100)})
    (stored,) = stored_tensors(file)[0]
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="not fully covered"):
        stored.read(0, torch.empty(100))
    file.write_bytes(b"no header")
    with pytest.raises(CheckpointError, match="cannot be read"):
        stored_tensors(file)


def piece(start: int, values: torch.Tensor, *, own: bool = True) -> StateSlice:
    return StateSlice(name="w", part=MASTER, start=start, values=values, own=own)


@pytest.mark.parametrize("cuts", [(0, 12), (0, 5, 12), (0, 1, 2, 11, 12)])
@pytest.mark.parametrize("wanted", [(0, 12), (3, 7), (5, 5), (11, 12)])
def test_a_piece_is_read_from_whatever_files_hold_it(
    tmp_path: Path, cuts: tuple[int, ...], wanted: tuple[int, int]
) -> None:
    whole = torch.arange(12.0)
    for rank, (start, end) in enumerate(pairwise(cuts)):
        write_slices(tmp_path / f"rank-{rank}.safetensors", [piece(start, whole[start:end])])
    found = torch.full((wanted[1] - wanted[0],), -1.0)
    SliceIndex(tmp_path).fill(piece(wanted[0], found))
    assert torch.equal(found, whole[slice(*wanted)])


def test_a_rank_without_pieces_of_its_own_writes_no_file(tmp_path: Path) -> None:
    assert write_slices(tmp_path / "rank.safetensors", [piece(0, torch.ones(3), own=False)]) == []
    assert not list(tmp_path.iterdir())


def test_elements_that_nobody_wrote_are_refused_by_the_parameters_name(tmp_path: Path) -> None:
    write_slices(tmp_path / "rank.safetensors", [piece(0, torch.ones(3))])
    with pytest.raises(CheckpointError, match="lacks master of w"):
        SliceIndex(tmp_path).fill(piece(2, torch.empty(2)))


def test_files_are_cut_at_their_largest_size_and_a_larger_tensor_is_alone() -> None:
    specs = [TensorSpec(name=str(n), dtype="bfloat16", shape=(size,)) for n, size in enumerate((10, 10, 5, 100, 1))]
    found = [[spec.name for spec in group] for group in cut_files(specs, 50)]
    assert found == [["0", "1", "2"], ["3"], ["4"]]
