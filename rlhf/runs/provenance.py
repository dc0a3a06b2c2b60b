"""Provenance of a run: digests of its data, chat template, start model and reference.

The content of a path may change between the processes of a run. A resumed run with other rows would train some tasks
twice and others never; with another reference, its KL would refer to two models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from rlhf.data.config import DataConfig, DatasetConfig
from rlhf.data.sources import local_files, read_rows
from rlhf.durable import checksum
from rlhf.errors import ConfigError
from rlhf.runs.episode_parts import parts_in
from rlhf.runs.folder import RunFolder
from rlhf.runs.recorded_episodes import recorded_episodes

BLOCK_BYTES, BLOCKS = 1 << 20, 64
"""Size and number of evenly spaced blocks that are read from a large file; training changes every weight, so any other
model differs in them."""
MODEL_FILES = (".safetensors", ".bin", ".json", ".model", ".txt")
OF_THE_TEMPLATE = ("tokenizer_config.json", "chat_template.json")
Provenance = Mapping[str, str]
"""Digests, by the recipe key that names the input."""
TEMPLATE = "the chat template of model.path"


def provenance(
    model: str, *, data: DataConfig, others: Mapping[str, str | None] = {}, trust_remote_code: bool = False
) -> dict[str, str]:
    """Read data and models; return the digests of the inputs of a run on `data` from the start model in `model`.
    `others` are folders of more models and adapters, by the recipe key of each."""
    return {
        **{key: data_digest(config) for key, config in data.sets.items() if config.path is not None},
        **({"data.episodes": episodes_digest(recorded_episodes(data.episodes))} if data.episodes else {}),
        "model.path": model_digest(model),
        TEMPLATE: template_digest(model, trust_remote_code=trust_remote_code),
        **{key: model_digest(folder) for key, folder in others.items() if folder},
    }


def check_provenance(run: Path, began: Provenance, found: Provenance) -> None:
    """Raise `ConfigError` unless all inputs are those with which the run in `run` began."""
    if began and (others := [key for key in (*began, *found) if began.get(key) != found.get(key)]):
        raise ConfigError(
            f"{', '.join(dict.fromkeys(others))}: differs from what {run} began with, perhaps under the same name; a "
            "resumed run keeps its data, chat template, start model and reference: restore it, or begin another run"
        )


def recorded_provenance(folder: RunFolder) -> Provenance:
    """Return the digests that the newest checkpoint of a run has."""
    states = sorted(folder.checkpoints.glob("version-*/trainer_state.json"))
    try:
        return json.loads(states[-1].read_text()).get("provenance") or {} if states else {}
    except (OSError, ValueError):
        return {}


def data_digest(config: DatasetConfig) -> str:
    """Return the digest of local files by content, or of a hub dataset row by row; of rows that a function of the user
    makes, row by row, since the function may change, too."""
    digest = blake2b(digest_size=16)
    files = [] if config.row else local_files(config)
    for file in files:
        digest.update(f"{file.name} {checksum(file)}\n".encode())
    for _, row in () if files else read_rows(config):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    if config.few_shot and (path := config.few_shot.path):
        shots = {"path": path, "split": config.few_shot.split, "limit": None, "few_shot": None}
        digest.update(data_digest(config.model_copy(update=shots)).encode())
    return digest.hexdigest()


def episodes_digest(recorded: Path) -> str:
    """Return the digest of recorded episodes: of a file, or of all parts in a folder."""
    if recorded.is_file():
        return checksum(recorded)
    return blake2b(" ".join(map(checksum, parts_in(recorded))).encode(), digest_size=16).hexdigest()


def model_digest(name: str) -> str:
    """Return the digest of a model folder's weights, configuration and vocabulary; for a hub model, its commit."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        from transformers.utils.hub import cached_file

        return f"commit {Path(str(cached_file(name, 'config.json'))).parent.name}"
    digest = blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        if file.suffix in MODEL_FILES and file.name not in OF_THE_TEMPLATE:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            for block in blocks(file):
                digest.update(block)
    return digest.hexdigest()


def template_digest(model: str, *, trust_remote_code: bool) -> str:
    """Return the digest of the chat template and the special tokens."""
    from rlhf.models.loading import bare_tokenizer

    tokenizer = bare_tokenizer(model, trust_remote_code=trust_remote_code)
    text = json.dumps([tokenizer.chat_template, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def blocks(file: Path) -> Iterator[bytes]:
    """Iterate over the whole file, or over `BLOCKS` blocks of a large one, from the first to the last."""
    size = file.stat().st_size
    whole = size <= BLOCKS * BLOCK_BYTES
    with file.open("rb") as content:
        for index in range(BLOCKS):
            if not whole:
                content.seek(index * (size - BLOCK_BYTES) // (BLOCKS - 1))
            yield content.read(BLOCK_BYTES)
