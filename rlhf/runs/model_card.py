"""Export of a run's model, with a model card as README.md: how it was trained, from the run folder.

https://huggingface.co/docs/hub/model-cards
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from rlhf.config import load_yaml
from rlhf.errors import UserError
from rlhf.runs.folder import RunFolder
from rlhf.runs.provenance import Provenance, recorded_provenance
from rlhf.runs.stored_run import StoredRun, read_run
from rlhf.untrusted_text import escape_controls, escape_to_line

CARD = "README.md"
MARKUP = re.compile(r"[\\`*_{}\[\]()<>#|!&~]")
OF_THE_MACHINE = {"run", "cluster", "python_path", "cache_dir", "url", "urls", "token_env"}
"""Keys about a run's place, not its training."""


def export_model(model: str, output: Path) -> Path:
    """Copy a Hugging Face folder to `output`, and describe it in README.md if it is of a run and has none.

    Raises `UserError` when `output` is not empty.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists already; name a folder that does not")
    shutil.copytree(model, output, dirs_exist_ok=True)
    source = Path(model).resolve()
    run = RunFolder(source.parent.parent.parent)
    if run.checkpoints == source.parent.parent and run.recipe.is_file() and not (output / CARD).exists():
        version = int(source.parent.name.removeprefix("version-"))
        (output / CARD).write_text(model_card(read_run(run.path), source, version, recorded_provenance(run)))
    return output


def model_card(run: StoredRun, model: Path, version: int, digests: Provenance) -> str:
    """Return the card of a model folder with the run's weights of a version. It has no text of the data and no path."""
    made = [(last, load_yaml(text), _chosen_yaml(text)) for last, text in run.recipes(version)]
    recipe = made[-1][1]
    others = [(last, text) for (last, _, text), (_, _, after) in pairwise(made) if text != after]
    averaged, adapter = model.name.endswith("_ema"), (model / "adapter_config.json").is_file()
    summary = run.summary or {}
    base, kind, trainer = recipe["model"]["path"], recipe["kind"], recipe["trainer"]
    from_hub = digests.get("model.path", "").startswith("commit ")
    algorithm = trainer["algorithm"] or (trainer["advantage"]["estimator"] if kind == "rl" else None)
    tags = ["rlhf", kind, *([algorithm] if algorithm else [])]
    library = "peft" if adapter else "transformers"
    head = {**({"base_model": base} if from_hub else {}), "library_name": library, "tags": tags}
    facts = {
        "run": f"{run.name}: {run.outcome}",
        "kind": kind,
        "algorithm": algorithm,
        "start model": _public(base) or "made by the recipe",
        "trained on": _sets(recipe["data"]),
        "updates": f"{version} of {trainer['updates']}",
        "trained episodes": summary["samples"] if summary.get("updates") == version else None,
        "weights": "a moving average over the updates" if averaged else "a LoRA adapter" if adapter else None,
        "transformers": None
        if adapter
        else json.loads((model / "config.json").read_text()).get("transformers_version"),
        "exported by": f"rlhf {metadata.version('rlhf')}",
        **{f"digest of {key}": digest for key, digest in digests.items()},
    }
    tables = [
        _table(("", ""), ((name, fact) for name, fact in facts.items() if fact is not None)),
        _table(("evaluation", "problems", "metric", "before", "after"), _evaluations(run, version, averaged=averaged)),
    ]
    sections = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {inline(run.name)}",
        *filter(None, tables),
        "## Recipe",
        "What differs from the defaults, without addresses and folders. Kept as `recipe.yaml`, with the same data, "
        "`rlhf train recipe.yaml` trains it again.",
        *(f"Up to update {last}, before it was resumed with another recipe:\n\n{text}" for last, text in others),
        *([f"Up to update {version}:"] if others else []),
        made[-1][2],
    ]
    return "\n\n".join(sections) + "\n"


def inline(text: str) -> str:
    """Return text of any origin on one line, without effect on what surrounds it."""
    return MARKUP.sub(lambda found: f"\\{found[0]}", escape_to_line(text))


def fenced(text: str, language: str = "text") -> str:
    """Return text of any origin as a block, with a fence that is longer than any in it."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{escape_controls(text)}\n{fence}"


def _sets(data: Mapping[str, Any]) -> str | None:
    """Return the names of the files, hub datasets or functions that it trained on."""
    train = data["train"] if isinstance(data["train"], list) else [data["train"] or {}]
    named = [one.get("path") or one.get("tasks") for one in train] + [data["episodes"]]
    return ", ".join(str(_public(name)) for name in named if name) or None


def _chosen_yaml(recipe: str) -> str:
    chosen = _chosen(load_yaml(recipe), iter(recipe.splitlines()))
    return fenced(yaml.safe_dump(_public(chosen), sort_keys=False).rstrip(), "yaml")


def _chosen(values: Mapping[str, Any], lines: Iterator[str]) -> dict[str, Any]:
    """Return the values of a resolved recipe that are no defaults; its lines, in the same order, say which."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        default = next(lines).endswith("  # default")
        if isinstance(value, dict) and value:
            found |= {key: inner} if (inner := _chosen(value, lines)) else {}
        elif not default:
            found[key] = value
    return found


def _public(value: Any) -> Any:
    """Remove keys about the machine, and the folders of files."""
    match value:
        case dict():
            return {key: _public(inner) for key, inner in value.items() if key not in OF_THE_MACHINE}
        case list():
            return [_public(inner) for inner in value]
        case str() if value.startswith(("/", "~")):
            return Path(value).name
        case _:
            return value


def _evaluations(run: StoredRun, version: int, *, averaged: bool) -> Iterator[tuple[object, ...]]:
    """Yield each metric of the start model and of these weights, where they were evaluated: a run evaluates no moving
    average."""
    summary = run.summary or {}
    row = next((row for row in run.rows if row["update"] == version), {})
    for name, one in (summary.get("evaluations") or {}).items():
        end = (one.get("end") or {}) if summary.get("updates") == version else {}
        for metric, before in (one.get("start") or {}).items():
            after = None if averaged else end.get(metric, row.get(f"eval/{name}/{metric}"))
            yield name, one["problems"], metric, f"{before:.4g}", "-" if after is None else f"{after:.4g}"


def _table(head: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> str:
    lines = [f"| {' | '.join(inline(str(cell)) for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) if lines else ""
