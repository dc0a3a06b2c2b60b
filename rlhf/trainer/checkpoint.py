"""Checkpoints on disk: a folder that is complete or is not there.

`version-000010/` holds `deepspeed/` (the ranks' state), `huggingface/` (a ready model folder) and `manifest.json`,
which is written last and lists every file with its size. Until then the folder has another name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf.errors import CheckpointError, UserError

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints in its run folder."""
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """`version` counts the updates behind the weights. A resume issues `outstanding` ordinals again, then goes on from
    `next_ordinal`. `files` are sizes in bytes by path within the folder."""

    version: int
    next_ordinal: int
    outstanding: tuple[int, ...]
    files: Mapping[str, int]
    format: int = FORMAT


async def write_checkpoint(
    root: Path,
    *,
    version: int,
    next_ordinal: int,
    outstanding: tuple[int, ...],
    save: Callable[[Path], Awaitable[None]],
) -> Path:
    """Let `save` fill a new folder, then give it its manifest and its name. Returns the finished folder."""
    writing, finished = root / f"writing-{version:06d}", root / f"version-{version:06d}"
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    await save(writing)
    manifest = CheckpointManifest(
        version=version, next_ordinal=next_ordinal, outstanding=outstanding, files=_sizes(writing)
    )
    _write_durably(writing / MANIFEST, json.dumps(asdict(manifest), indent=1))
    shutil.rmtree(finished, ignore_errors=True)
    writing.rename(finished)
    return finished


def read_checkpoint(path: Path) -> CheckpointManifest:
    """The manifest of a complete checkpoint. Raises `CheckpointError` for one missing, half written or damaged."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such checkpoint")
    try:
        manifest = _parse((path / MANIFEST).read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a complete checkpoint: it has no {MANIFEST}; use an older one") from None
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path / MANIFEST} cannot be read ({error}); use another checkpoint") from None
    sizes = _sizes(path)
    for name, size in manifest.files.items():
        if sizes.get(name) != size:
            found = "missing" if name not in sizes else f"{sizes[name]} bytes"
            raise CheckpointError(f"{path} is damaged: {name} should have {size} bytes and is {found}")
    return manifest


def checkpoints(root: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(path for path in root.glob("version-*") if re.fullmatch(r"version-\d{6,}", path.name))


def newest_checkpoint(root: Path) -> Path:
    """The newest finished checkpoint under `root`. Raises `CheckpointError` when there is none."""
    found = checkpoints(root)
    if not found:
        raise CheckpointError(f"{root}: there is no finished checkpoint")
    return found[-1]


def newest_complete(root: Path) -> tuple[tuple[Path, CheckpointManifest] | None, tuple[str, ...]]:
    """The newest checkpoint that is whole, if there is any, and why each one that is newer was refused."""
    refused = [f"{path} was never finished" for path in sorted(root.glob("writing-*"), reverse=True)]
    for path in reversed(checkpoints(root)):
        try:
            return (path, read_checkpoint(path)), tuple(refused)
        except CheckpointError as error:
            refused.append(str(error))
    return None, tuple(refused)


def prune(root: Path, keep: int) -> None:
    """Delete all but the `keep` newest checkpoints, and folders that were never finished."""
    for path in [*checkpoints(root)[:-keep], *root.glob("writing-*")]:
        shutil.rmtree(path)


def _parse(text: str) -> CheckpointManifest:
    values = json.loads(text)
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']}, this version reads {FORMAT}")
    return CheckpointManifest(**{**values, "outstanding": tuple(values["outstanding"])})


def _sizes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def model_folder(checkpoint: str) -> str:
    """The Hugging Face folder that `checkpoint` names: itself, a checkpoint's, or the newest one's of a run folder.

    Raises `CheckpointError` when there is no model there, or only a checkpoint that was written half.
    """
    path = Path(checkpoint)
    if (path / "config.json").is_file():
        return str(path)
    if (path / CHECKPOINTS).is_dir():
        path = newest_checkpoint(path / CHECKPOINTS)
    read_checkpoint(path)
    return str(path / "huggingface")


def export_model(model: str, output: Path) -> Path:
    """Copy a Hugging Face folder to `output`. Raises `UserError` when that holds something already."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists already; name a folder that does not")
    return Path(shutil.copytree(model, output, dirs_exist_ok=True))
