"""A failure with a name is one line and its exit code, also in the supervised process that comes upon it."""

from __future__ import annotations

import pytest

from rlhf.apps.failures import reporting_failures
from rlhf.errors import ModelError, WorkerDied


def ending_with(error: Exception) -> int:
    def main() -> int:
        raise error

    return reporting_failures(main)()


def test_what_the_user_can_put_right_is_told_and_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending_with(ModelError("no such model;\nname another")) == 2
    assert capsys.readouterr().err == "error: no such model; name another\n"


def test_any_other_failure_with_a_name_is_told_and_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending_with(WorkerDied("engine-0", "killed by SIGKILL")) == 1
    assert capsys.readouterr().err == "error: engine-0 died: killed by SIGKILL\n"


def test_a_programming_error_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        ending_with(ZeroDivisionError())


def test_an_end_without_failure_keeps_its_code() -> None:
    assert reporting_failures(lambda: 3)() == 3
