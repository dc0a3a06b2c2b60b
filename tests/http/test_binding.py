"""Servers listen where only this machine can ask, or want a token; names, limits and certificates are checked first."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.apps.server_options import access_of, check_reach
from rlhf.errors import ConfigError, RecordingError
from rlhf.http.binding import (
    Access,
    HttpLimits,
    check_binding,
    check_tls,
    is_loopback,
    limits_from,
    server_names,
    token_from,
)
from rlhf.http.config import RecordingConfig, check_recording
from tests.http.certificates import self_signed


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check_binding(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_any_other_address_needs_a_token(host: str) -> None:
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


def test_a_recording_in_a_missing_folder_is_known_before_anything_is_asked() -> None:
    with pytest.raises(RecordingError, match="make it first"):
        check_recording(RecordingConfig(path="nowhere/at/all/tape.jsonl", mode="record"))


def test_files_that_are_not_a_certificate_and_its_key_are_refused_before_anything_starts(tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    check_tls(tls)
    (tmp_path / "text").write_text("no certificate")
    for half in (Access(certificate=tls.certificate), Access(key=tls.key)):
        with pytest.raises(ConfigError, match="belong together"):
            check_tls(half)
    for name in ("text", "absent"):
        with pytest.raises(ConfigError, match=f"--certificate .*{name}"):
            check_tls(Access(certificate=tmp_path / name, key=tmp_path / name))
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        check_tls(Access(certificate=tls.certificate, key=tls.certificate))


def test_beyond_loopback_plain_text_is_warned_of_and_a_missing_token_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = self_signed(tmp_path)
    check_reach("127.0.0.1", None, Access())
    check_reach("0.0.0.0", "secret", tls)
    assert capsys.readouterr().err == ""
    check_reach("0.0.0.0", "secret", Access())
    assert capsys.readouterr().err.startswith("warning: requests to host 0.0.0.0")
    with pytest.raises(ConfigError, match="a token is required"):
        check_reach("0.0.0.0", None, tls)


def test_a_limit_is_set_by_its_name() -> None:
    access = access_of(["a.example"], None, None, ["connections=7", "body_seconds=5"], HttpLimits(body_bytes=9))
    assert access == Access(names=("a.example",), limits=HttpLimits(body_bytes=9, connections=7, body_seconds=5))


@pytest.mark.parametrize(
    "text", ["connection=7", "connections", "connections=0", "idle_seconds=nan", "idle_seconds=-1"]
)
def test_a_limit_without_a_sensible_number_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--limit '{text}'"):
        limits_from([text], HttpLimits())


def test_beyond_loopback_a_server_also_has_the_name_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf.http.binding.gethostname", lambda: "Node1.cluster")
    assert server_names("0.0.0.0", ["x"]) == {"0.0.0.0", "node1.cluster", "node1", "x"}
    assert server_names("127.0.0.1", ["x"]) == {"x"}
