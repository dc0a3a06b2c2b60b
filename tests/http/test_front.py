"""A server of this project: TLS by certificate files, limits by name, and names beyond loopback."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from websockets.asyncio.client import connect

from rlhf.commands.server_options import access_of, check_reach
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.threads import ThreadIsolation
from rlhf.env.server.app import EnvironmentServerSettings, build_app, environment_uvicorn_config
from rlhf.errors import ConfigError
from rlhf.http.binding import Access, check_tls, name_in_header, server_names
from rlhf.http.limits import HttpLimits, limits_from
from rlhf.http.listening import listening
from rlhf.http.serving import uvicorn_config, with_access


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Access:
    """A certificate of 127.0.0.1 that signs itself, with its key."""
    folder, key = tmp_path_factory.mktemp("tls"), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    return Access(certificate=folder / "certificate.pem", key=folder / "key.pem")


async def hello(request: Request) -> Response:
    return PlainTextResponse(request.url.scheme)


async def test_with_a_certificate_a_server_speaks_tls_and_nothing_else(tls: Access) -> None:
    app = with_access(Starlette(routes=[Route("/", hello)]), lambda status, why: {"why": why}, tls)
    check_tls(tls)
    async with listening(uvicorn_config(app, tls)) as url:
        assert url.startswith("https://127.0.0.1:")
        known = ssl.create_default_context(cafile=tls.certificate)
        async with httpx.AsyncClient(verify=known, trust_env=False) as client:
            assert (await client.get(url)).text == "https"
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get(url)
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(url.replace("https", "http"))


async def test_a_websocket_goes_through_tls_too(tls: Access) -> None:
    isolation = ThreadIsolation(Factory(name="tests.env.environments:Guess", arguments={}), Deadlines())
    await isolation.start()
    settings = EnvironmentServerSettings(port=0, token="secret", access=tls)
    async with listening(environment_uvicorn_config(build_app(isolation, settings), settings)) as url:
        known, bearer = ssl.create_default_context(cafile=tls.certificate), {"Authorization": "Bearer secret"}
        where = f"{url.replace('https', 'wss')}/ws"
        async with connect(where, ssl=known, proxy=None, additional_headers=bearer) as socket:
            await socket.send('{"type": "reset", "data": {"seed": 3}}')
            assert '"observation"' in await socket.recv()
    await isolation.stop()


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_a_certificate_and_its_key_come_together(tls: Access, missing: str) -> None:
    half = Access(**{"certificate": tls.certificate, "key": tls.key, missing: None})
    with pytest.raises(ConfigError, match="come together"):
        check_tls(half)


def test_files_that_are_no_certificate_are_told_before_anything_starts(tls: Access, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    for certificate, key in (("text", "text"), ("absent", "absent")):
        with pytest.raises(ConfigError, match=f"--certificate .*{certificate}"):
            check_tls(Access(certificate=tmp_path / certificate, key=tmp_path / key))
    with pytest.raises(ConfigError, match="are no certificate and its key"):
        check_tls(Access(certificate=tls.certificate, key=tls.certificate))


def test_beyond_loopback_plain_text_is_warned_of_and_no_token_is_refused(
    tls: Access, capsys: pytest.CaptureFixture[str]
) -> None:
    check_reach("127.0.0.1", None, Access())
    check_reach("0.0.0.0", "secret", tls)
    assert capsys.readouterr().err == ""
    check_reach("0.0.0.0", "secret", Access())
    assert capsys.readouterr().err.startswith("warning: host 0.0.0.0 is asked in plain text")
    with pytest.raises(ConfigError, match="there is no token"):
        check_reach("0.0.0.0", None, tls)


def test_a_limit_is_set_by_its_name() -> None:
    access = access_of(["a.example"], None, None, ["connections=7", "head_seconds=0.5"], HttpLimits(body_bytes=9))
    assert access == Access(names=("a.example",), limits=HttpLimits(body_bytes=9, connections=7, head_seconds=0.5))


@pytest.mark.parametrize("text", ["connection=7", "connections", "connections=0", "idle_seconds=nan"])
def test_a_limit_that_is_none_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--limit '{text}'"):
        limits_from([text], HttpLimits())


@pytest.mark.parametrize(
    ("header", "name"),
    [("A.example:80", "a.example"), ("[::1]:8000", "::1"), ("a.example.", "a.example"), ("a:b", None), ("a@b", None)],
)
def test_a_host_header_is_a_name_and_perhaps_a_port(header: str, name: str | None) -> None:
    assert name_in_header(header) == name


def test_beyond_loopback_a_server_also_has_the_name_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf.http.binding.gethostname", lambda: "Node1.cluster")
    assert server_names("0.0.0.0", ["x"]) == {"0.0.0.0", "node1.cluster", "node1", "x"}
    assert server_names("127.0.0.1", ["x"]) == {"x"}
