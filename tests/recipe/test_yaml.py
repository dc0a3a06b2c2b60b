"""A recipe is read as it is written; what readers of YAML understand differently is refused, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.config import dump_yaml, load_yaml, parse_override
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trainer:\n  updates: 3\nseed: 1\ntrainer:\n  group_size: 4\n", "'trainer' occurs twice, first on line 1"),
        ("name: x\nname: x\n", "line 2.*'name' occurs twice"),
        ("trainer: {updates: 3, updates: 4}\n", "line 1.*'updates' occurs twice"),
        ("trainer:\n  updates: 3\ntrainer.updates: 4\n", "trainer.updates occurs twice"),
        ("seed: 1\ntrainer:\n  updates: 010\n", "line 3.*010 is ambiguous: write 10"),
        ("trainer:\n  updates: 1:30\n", "trainer.updates.*got '1:30'"),
        ("trainer:\n  updates: 0o10\n", "trainer.updates.*got '0o10'"),
        ("trainer:\n  optimizer: {learning_rate: .inf}\n", "learning_rate.*finite"),
        ("trainer:\n  optimizer: {learning_rate: .nan}\n", "learning_rate.*finite"),
        ("trainer:\n  optimizer: {learning_rate: true}\n", "learning_rate.*true is not a number"),
        ("trainer:\n  updates: true\n", "updates.*true is not a number"),
    ],
)  # fmt: skip
def test_yaml_that_readers_understand_differently_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_recipe(file, ("model.path=m", "data.train.path=d.jsonl", "reward.kind=exact"))


def test_yaml_is_read_as_it_is_written() -> None:
    text = "[off, no, 1:30, 2026-01-02, 0o10, 1e-3, 1E5, .5, 2., 1_000, 0x1F, -7, true, null, '1e5', '010', 1e, =]"
    given = [
        "off",
        "no",
        "1:30",
        "2026-01-02",
        "0o10",
        1e-3,
        1e5,
        0.5,
        2.0,
        1000,
        31,
        -7,
        True,
        None,
        "1e5",
        "010",
        "1e",
        "=",
    ]
    assert load_yaml(text) == given
    assert load_yaml(dump_yaml(given)) == given
    assert parse_override("name=off") == ("name", "off")
    with pytest.raises(ConfigError, match="the key 'x' occurs twice"):
        parse_override("a={x: 1, x: 2}")
