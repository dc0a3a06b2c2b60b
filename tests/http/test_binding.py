"""Servers listen where only this machine can ask, or want a token."""

from __future__ import annotations

import pytest

from rlhf.errors import ConfigError, RecordingError
from rlhf.http.binding import check_binding, is_loopback, token_from
from rlhf.http.config import RecordingConfig, check_recording


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check_binding(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_any_other_address_does(host: str) -> None:
    with pytest.raises(ConfigError, match="--token-env"):
        check_binding(host, None)
    check_binding(host, "secret")


def test_a_token_is_read_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret\n")
    assert token_from("MY_TOKEN") == "secret"
    assert token_from(None) is None
    monkeypatch.setenv("MY_TOKEN", "")
    with pytest.raises(ConfigError, match="export MY_TOKEN"):
        token_from("MY_TOKEN")


def test_a_recording_for_a_folder_that_is_not_there_is_known_before_anything_is_asked() -> None:
    with pytest.raises(RecordingError, match="make it first"):
        check_recording(RecordingConfig(path="nowhere/at/all/tape.jsonl", mode="record"))
