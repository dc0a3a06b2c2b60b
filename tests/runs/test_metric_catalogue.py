"""Every metric that the product logs has an entry, and every entry is true of the product."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from rlhf.apps.cli.options import all_options
from rlhf.runs.metric_catalogue import catalogue, find_metric, nearest_metric, search_metrics
from tests.warm.command_line import rlhf

ROOT = Path(__file__).parents[2]
LOGGING = ("trainer", "controller/rl.py", "controller/callbacks.py", "rollout/evaluation.py")
"""Where metrics are named."""
NEVER_LOGGED = {"mismatch/weight_mean", "mismatch/weight_squared", "pairs/log_ratio"}
"""Parts of what is logged."""


def python_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.rglob("*.py"))


def names_in_code() -> set[str]:
    files = [file for one in LOGGING for file in python_files(ROOT / "rlhf" / one)]
    strings = {
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    parts = {entry.name.split("/")[0] for entry in catalogue()}
    return {text for text in strings if re.fullmatch(rf"({'|'.join(parts)})/[\w@]+", text)}


def test_every_metric_that_the_code_names_is_explained() -> None:
    names = names_in_code()
    assert len(names) > 50
    assert {
        name for name in names - NEVER_LOGGED if find_metric(name) is None or find_metric(name).name != name
    } == set()


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("reward/mean", "reward/mean"),
        ("reward/guesser", "reward/ROLE"),
        ("samples/lost", "samples/lost"),
        ("samples/lost/environment_timeout", "samples/lost/KIND"),
        ("eval/held_out/avg@16", "eval/NAME/avg@N"),
        ("eval/a/b/pass@8", "eval/NAME/pass@K"),
        ("eval/held_out/accuracy", "eval/NAME/PAIRS"),
        ("eval/held_out/pass@many", None),
        ("eval/held_out/mine", None),
        ("mine", None),
    ],
)
def test_a_name_has_the_entry_of_its_own_or_of_its_family(name: str, entry: str | None) -> None:
    found = find_metric(name)
    assert (found and found.name) == entry


def test_entries_are_consistent() -> None:
    keys = {option.key for option in all_options()}
    for entry in catalogue():
        ranged = entry.low is not None or entry.high is not None
        assert bool(entry.remedy) == ranged, f"{entry.name}: a remedy is for what has a healthy range"
        assert not entry.alarm or (ranged and "{value}" in entry.alarm), entry.name
        assert not entry.meaning.endswith("."), entry.name
        named = set(re.findall(r"`([a-z_]+\.[a-z_.]+)`", entry.meaning + entry.remedy)) - {"spans.jsonl"}
        settings = {one for one in named if any(key == one or key.startswith(f"{one}.") for key in keys)}
        assert named == settings, f"{entry.name} names settings that no recipe has"
        others = [one for one in re.findall(r"`([a-z_]+/[\w/]+)`", entry.remedy) if find_metric(one) is None]
        assert others == [], entry.name


def test_the_documented_list_is_the_catalogue() -> None:
    spec = importlib.util.spec_from_file_location("metric_table", ROOT / "scripts" / "metric_table.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = script.LIST.findall(script.PAGE.read_text())
    assert written == [script.listed()], "run python scripts/metric_table.py"


@pytest.mark.parametrize(
    ("value", "entry", "healthy", "text"),
    [
        (0.96, "reward/equal_groups", False, "96 %"),
        (0.02, "policy/logprob_difference", False, "0.02 nats"),
        (0.005, "policy/logprob_difference", True, "0.005 nats"),
        (0.0, "policy/entropy", False, "0 nats"),
        (float("nan"), "policy/entropy", False, "nan nats"),
        (1234567.0, "tokens/trained", True, "1,234,567 tokens"),
        (1.1, "correction/weight_mean", True, "1.1"),
    ],
)
def test_values_are_in_their_range_or_not(value: float, entry: str, healthy: bool, text: str) -> None:
    metric = find_metric(entry)
    assert metric is not None
    assert (metric.is_healthy(value), metric.format(value)) == (healthy, text)


def test_a_beginning_finds_all_and_a_misspelt_name_the_nearest() -> None:
    assert {entry.name for entry in search_metrics("mismatch/")} >= {"mismatch/k1", "mismatch/k3"}
    assert [entry.name for entry in search_metrics("reward/mean")] == ["reward/mean"]
    assert nearest_metric("policy/entropi") == "policy/entropy"
    assert nearest_metric("grad_nrm") == "optimizer/grad_norm"
    assert nearest_metric("xyz") is None


def test_the_command_explains_lists_and_suggests() -> None:
    assert rlhf("explain", "reward/meen").stdout.endswith("or       did you mean 'reward/mean'?\n")
    one = rlhf("explain", "policy/entropy")
    assert one.returncode == 0
    assert [line.split()[0] for line in one.stdout.splitlines()] == [
        "policy/entropy",
        "meaning",
        "unit",
        "healthy",
        "else",
    ]
    every = rlhf("explain").stdout.splitlines()
    assert len(every) == len(catalogue())
    wrong = rlhf("explain", "policy/entropi\x1b[31m")
    assert wrong.returncode == 2
    assert "did you mean 'policy/entropy'?" in wrong.stderr
    assert "\x1b" not in wrong.stderr
