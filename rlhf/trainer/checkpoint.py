"""Checkpoints on disk: a checkpoint folder is complete, or does not exist under its name.

`version-000010/` contains `deepspeed/` (the ranks' state), `huggingface/` (a ready model folder) and `manifest.json`.
The manifest is written last, when all files are on disk, and lists every file as its writer reported it. Until then the
folder has another name.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlhf.durable import checksums, sizes, sync_folder, sync_tree, unguarded, write_durably
from rlhf.errors import CheckpointError
from rlhf.types import Written

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints in its run folder."""
MODEL, AVERAGE, ADAPTER = "huggingface", "huggingface_ema", "adapter"
"""Folders of a checkpoint that can be taken away."""
POLICIES = "policies"
"""The folder with a folder of state for each of several policies, instead of one for all."""
WRITTEN_WITH = {AVERAGE: "trainer.ema_decay", ADAPTER: "model.lora"}
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """`version` is the number of updates of the weights. A resumed run issues `outstanding` ordinals again, then
    continues from `next_ordinal`. `files` are sizes in bytes and `checksums` those of `Written`, by path within the
    folder."""

    version: int
    next_ordinal: int
    outstanding: tuple[int, ...]
    files: Mapping[str, int]
    checksums: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


async def write_checkpoint(
    root: Path,
    *,
    version: int,
    next_ordinal: int,
    outstanding: tuple[int, ...],
    save: Callable[[Path], Awaitable[Mapping[str, Written]]],
    mark: str = "",
    may_write: Callable[[], None] = unguarded,
) -> Path:
    """Let `save` fill a new folder, then write its manifest and rename it. Returns the finished folder.

    `save` returns what was written and is on disk. `mark` distinguishes this process's unfinished folder from those of
    others; `may_write` raises when the process must stop writing. Raises `CheckpointError` for a file that differs from
    its writer's report.
    """
    writing, finished = root / f"writing-{version:06d}{mark}", root / f"version-{version:06d}"
    may_write()
    await asyncio.to_thread(shutil.rmtree, writing, ignore_errors=True)
    writing.mkdir(parents=True)
    written = dict(sorted((await save(writing)).items()))
    manifest = CheckpointManifest(
        version=version,
        next_ordinal=next_ordinal,
        outstanding=outstanding,
        files={name: one.size for name, one in written.items()},
        checksums={name: one.checksum for name, one in written.items()},
    )
    check_file_sizes(writing, manifest, "its writer says")
    may_write()
    await asyncio.to_thread(sync_tree, writing)
    write_durably(writing / MANIFEST, json.dumps(asdict(manifest), indent=1))
    may_write()
    if finished.exists():
        finished.rename(writing.with_name(f"{writing.name}-replaced"))
    writing.rename(finished)
    await asyncio.to_thread(sync_folder, root)
    return finished


def read_checkpoint(path: Path) -> CheckpointManifest:
    """Return the manifest of a complete checkpoint. Raises `CheckpointError` for one that is missing, incomplete or
    damaged."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such checkpoint")
    try:
        manifest = _parse((path / MANIFEST).read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a complete checkpoint: it has no {MANIFEST}; use an older one") from None
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path / MANIFEST} cannot be read ({error}); use another checkpoint") from None
    check_file_sizes(path, manifest, "it should have")
    return manifest


def check_file_sizes(path: Path, manifest: CheckpointManifest, told: str) -> None:
    """Raise `CheckpointError` for a file that is missing or has another size."""
    found = sizes(path)
    for name, size in manifest.files.items():
        if found.get(name) != size:
            has = f"has {found[name]}" if name in found else "is missing"
            raise CheckpointError(f"{path} is damaged: {name} {has}, {told} {size} bytes")


def verify(path: Path, manifest: CheckpointManifest) -> None:
    """Read a checkpoint completely. Raises `CheckpointError` for a file whose content differs from what was written."""
    names = list(manifest.checksums)
    for name, found in zip(names, checksums(path / name for name in names), strict=True):
        if found != manifest.checksums[name]:
            raise CheckpointError(f"{path} is damaged: {name} has its size, but not its content")


def checkpoints(root: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(path for path in root.glob("version-*") if re.fullmatch(r"version-\d{6,}", path.name))


def newest_checkpoint(root: Path) -> Path:
    """Return the newest finished checkpoint under `root`. Raises `CheckpointError` when there is none."""
    found = checkpoints(root)
    if not found:
        raise CheckpointError(f"{root}: there is no finished checkpoint")
    return found[-1]


def unfinished(root: Path) -> list[Path]:
    """Folders of checkpoints that were never finished."""
    return sorted(root.glob("writing-*"))


def prune(root: Path, keep: int, may_write: Callable[[], None] = unguarded) -> None:
    """Delete complete checkpoints except the `keep` newest, and folders that were never finished. Incomplete
    checkpoints are neither counted nor deleted: the newest usable one is always kept."""
    whole = [path for path in checkpoints(root) if is_whole(path)]
    for path in [*whole[:-keep], *unfinished(root)]:
        may_write()
        shutil.rmtree(path)


def is_whole(path: Path) -> bool:
    """Whether a checkpoint has its manifest and all of its files, with their sizes."""
    try:
        read_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _parse(text: str) -> CheckpointManifest:
    values = json.loads(text)
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']}, this version reads {FORMAT}")
    return CheckpointManifest(**{**values, "outstanding": tuple(values["outstanding"])})


def model_folder(checkpoint: str | Path, part: str = MODEL) -> str:
    """Return the Hugging Face folder that `checkpoint` names: itself, a checkpoint's, or that of a run folder's newest
    checkpoint. `part` is `MODEL`, `AVERAGE` or `ADAPTER`, or the `ADAPTER` of one of several policies.

    Raises `CheckpointError` when there is no such part, or only an incomplete checkpoint.
    """
    path = Path(checkpoint)
    if part == MODEL and (path / "config.json").is_file():
        return str(path)
    if (path / CHECKPOINTS).is_dir():
        path = newest_checkpoint(path / CHECKPOINTS)
    read_checkpoint(path)
    if (path / POLICIES).is_dir() and not (path / part).is_dir():
        names = ", ".join(sorted(one.name for one in (path / POLICIES).iterdir()))
        raise CheckpointError(
            f"{path} holds policies and no model: {names}; `rlhf export --policy` takes one's adapter, and a recipe "
            "names it PATH:POLICY"
        )
    if part != MODEL and not (path / part).is_dir():
        raise CheckpointError(f"{path} has no {part}/; a run writes it with {WRITTEN_WITH.get(part, 'policies')}")
    return str(path / part)


def adapter_folder(named: str) -> str:
    """Return the folder in `peft`'s format that `named` names: itself, or the adapter of a checkpoint, or of a run
    folder's newest checkpoint. `PATH:POLICY` names that of one of several policies. Raises `CheckpointError`."""
    path, _, policy = named.partition(":")
    folder = Path(path).expanduser()
    if (folder / "adapter_config.json").is_file():
        if policy:
            raise CheckpointError(f"{folder} is one adapter, not a run with a policy {policy}; name the run")
        return str(folder)
    return model_folder(folder, f"{POLICIES}/{policy}/{ADAPTER}" if policy else ADAPTER)
