"""`rlhf serve env` and `rlhf env check`, as a person runs them."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from rlhf.apps.cli import serve_env
from rlhf.env.server.app import EnvironmentServerSettings, environment_uvicorn_config
from tests.apps.cli.conftest import Command
from tests.commanded import ROOT, commanded
from tests.pace import scaled

pytestmark = pytest.mark.engine
GUESS = "tests.env.environments:Guess"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_served_environment_conforms_and_ends_with_its_signal(rlhf: Command, isolation: str):
    options = ("--isolation", isolation, "--max-sessions", "22", "--arguments", '{"guesses": 2}')
    with commanded("env", GUESS, *options) as (url, process):
        checked = rlhf("env", "check", url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(scaled(20)) in (0, -signal.SIGTERM)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.endswith("conforms\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("serve", "env", "Guess"), "MODULE:CLASS"),
        (("serve", "env", "no_such_module:Guess"), "no_such_module"),
        (("serve", "env", GUESS, "--arguments", "[1]"), "not a JSON object"),
        (("serve", "env", GUESS, "--arguments", '{"colour": 1}'), "cannot be made"),
        (("serve", "env", GUESS, "--isolation", "hope"), "thread, process"),
        (("serve", "env", GUESS, "--host", "0.0.0.0"), "a token is required"),
        (("serve", "env", GUESS, "--host", "0.0.0.0", "--token-env", "NO_SUCH_TOKEN"), "NO_SUCH_TOKEN"),
        (("env", "check", GUESS), f"serve it first: rlhf serve env {GUESS}"),
        (("env", "check", "127.0.0.1:9"), "for instance http://127.0.0.1:9"),
        (("env", "check", "http://127.0.0.1:9"), "no environment server"),
        (("env", "check", "http://127.0.0.1:9", "--action", "{"), "not JSON"),
    ],
)
def test_what_cannot_be_served_or_checked_is_told_in_one_line(
    rlhf: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ended = rlhf(*words)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_ctrl_c_while_the_server_is_made_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def made(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return environment_uvicorn_config(*args)

    monkeypatch.setattr(serve_env, "environment_uvicorn_config", made)
    with pytest.raises(KeyboardInterrupt):
        serve_env.serve_environment(GUESS, "{}", "thread", EnvironmentServerSettings(port=0))
    assert capfd.readouterr().err == ""
