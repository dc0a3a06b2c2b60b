"""Exceptions of foreign code name the line of that code."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlhf.config import failing_by_name, load_piece
from rlhf.errors import ConfigError, NotFinite, PieceFailed, Raised, catch, describe_error, log_traceback, place_of

OWN = {
    "unknown_key.py": "def score(row):\n    return row['gold']\n",
    "inside_library.py": "import json\ndef score(row):\n\n    return json.loads('{')\n",
    "absent_import.py": "\nimport no_such_library\n",
    "wrong_name.py": "def score(row): return 1\n\nscroe\n",
    "broken_syntax.py": "def score(row) return 1\n",
}


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a user in the current folder."""
    for name, text in OWN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def error_of(work: Callable[[], object]) -> BaseException:
    raised = catch(work)
    assert isinstance(raised, Raised)
    return raised.error


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("unknown_key", "KeyError: 'gold' (at unknown_key.py:2)"),
        ("inside_library", "line 1 column 2 (char 1) (at inside_library.py:4)"),
        ("absent_import", "ModuleNotFoundError: No module named 'no_such_library' (at absent_import.py:2)"),
        ("wrong_name", "NameError: name 'scroe' is not defined (at wrong_name.py:3)"),
    ],
)
def test_an_exception_names_the_innermost_line_of_the_users_own_code(module: str, told: str, own_files: None) -> None:
    assert describe_error(error_of(lambda: importlib.import_module(module).score({}))).endswith(told)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken_syntax:score", "SyntaxError: expected ':' (broken_syntax.py, line 1)"),
        ("absent_import:score", "ModuleNotFoundError: No module named 'no_such_library' (at absent_import.py:2)"),
        ("unknown_key:scroe", "AttributeError: module 'unknown_key' has no attribute 'scroe'"),
        ("nowhere:score", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_piece_that_cannot_be_imported_says_why(name: str, told: str, own_files: None) -> None:
    sys.modules.pop(name.partition(":")[0], None)
    with pytest.raises(ConfigError) as refused:
        load_piece(name, "trainer.loss.policy")
    assert str(refused.value) == f"trainer.loss.policy is {name}, which cannot be imported: {told}"


def test_what_a_loss_or_an_estimator_raises_has_its_setting_its_name_and_its_line() -> None:
    def broken(actions: object, scale: float) -> float:
        return scale / len(actions)  # type: ignore[arg-type]

    piece = failing_by_name(partial(broken, scale=1.0), "my_loss:broken", "trainer.loss.policy")
    with pytest.raises(PieceFailed, match=r"^trainer\.loss\.policy my_loss:broken failed: ZeroDiv.*\(at tests/"):
        piece([])
    assert piece("ab") == 0.5
    named = failing_by_name(lambda: raising(NotFinite("a loss is NaN")), "my_loss:named", "trainer.loss.policy")
    with pytest.raises(NotFinite, match=r"^a loss is NaN$"):
        named()


def raising(error: Exception) -> None:
    raise error


def test_an_exception_of_a_package_has_its_line_and_one_of_ours_none() -> None:
    of_a_package = describe_error(error_of(lambda: np.linalg.inv(np.zeros((2, 2)))))
    assert place_of(of_a_package).startswith("tests/test_foreign_errors.py:"), "the innermost line outside of packages"
    assert place_of(describe_error(json.JSONDecodeError("never raised", "", 0))) == ""


def test_a_place_survives_a_long_message_and_is_read_at_the_end_only() -> None:
    def long() -> None:
        raise ValueError("(at here.py:1) " + "x" * 10_000)

    told = describe_error(error_of(long))
    assert len(told) < 600
    assert place_of(told).startswith("tests/test_foreign_errors.py:")
    assert place_of("ValueError: (at here.py:1) and more") == ""


def test_a_traceback_is_logged_once_for_every_place(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        for told in ("KeyError: 1 (at once.py:1)", "KeyError: 2 (at once.py:1)", "KeyError: 1 (at once.py:2)"):
            log_traceback(told, "the traceback")
    assert [record.getMessage() for record in caplog.records] == [
        "KeyError: 1 (at once.py:1)\nthe traceback",
        "KeyError: 1 (at once.py:2)\nthe traceback",
    ]
