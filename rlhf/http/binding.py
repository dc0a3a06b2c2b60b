"""Check where a server listens, its host names and its token: a server beyond loopback needs one."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from socket import gethostname

from rlhf.errors import ConfigError

LOOPBACK = "127.0.0.1"
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z._-]+?)\.?)(?::\d{1,5})?")
"""A `Host` header: a name or an address, and perhaps a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits in bytes, counts and seconds. A request beyond a limit gets an error, or its connection is closed."""

    header_bytes: int = 32 * 2**10
    """Size of request line and headers together: 400."""
    body_bytes: int = 2**20
    """Size of one body: 413. Of a WebSocket message: answered with an error; four times as much closes it with 1009."""
    body_seconds: int = 60
    """Time from the end of the headers to the end of the body: 408."""
    idle_seconds: int = 75
    """Time that a connection may be idle between two requests, until it is closed."""
    connections: int = 4096
    """Number of open connections, WebSockets included. With that many, a further request gets a 503."""


ENVIRONMENT = HttpLimits(body_bytes=16 * 2**20)
POLICY = REWARD = SANDBOX = HttpLimits(body_bytes=64 * 2**20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The additional host `names` of a server, and PEM files that make it use TLS: `certificate` and `key`."""

    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is loopback: only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str | None) -> None:
    """Raise `ConfigError` for a server without a token that other machines could reach."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"other machines can reach host {host}, so a token is required; "
            f"name the environment variable that holds one with --token-env, or listen on {LOOPBACK}"
        )


def check_tls(access: Access) -> None:
    """Raise `ConfigError` unless the files are a certificate and its key."""
    if (access.certificate is None) != (access.key is None):
        raise ConfigError("a certificate and its key belong together: give both --certificate and --key, or neither")
    if access.certificate is None or access.key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(access.certificate, access.key, password="")
    except OSError as error:  # includes ssl.SSLError
        files = f"--certificate {access.certificate} and --key {access.key}"
        raise ConfigError(f"{files} are not a certificate and its key: {error.strerror or error}") from None


def server_names(host: str, names: Collection[str]) -> frozenset[str]:
    """Return the host names, other than loopback's, that a server listening on `host` accepts."""
    own = () if is_loopback(host) else (host, gethostname(), gethostname().partition(".")[0])
    return frozenset(name.lower().rstrip(".") for name in (*own, *names) if name)


def may_be_asked_as(header: str, names: Collection[str], address: str) -> bool:
    """Whether a `Host` header names this server: a loopback name, one of `names`, or the `address` at which the
    connection arrived. A web page whose own name was rebound to this address (DNS rebinding) fails this check."""
    found = HOST.fullmatch(header.lower())
    name = found and (found[1] or found[2])
    return name is not None and (is_loopback(name) or name in names or name == address)


def token_from(variable: str | None) -> str | None:
    """Return the bearer token in an environment variable, if one is named. Raises `ConfigError` if it is empty."""
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(
            f"the environment variable {variable} must hold a token, but is empty; export {variable}=… first"
        )
    return token


def limits_from(texts: list[str], limits: HttpLimits) -> HttpLimits:
    """Update `limits` from `KEY=VALUE` texts. Raises `ConfigError`."""
    chosen: dict[str, int] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in asdict(limits):
            known = ", ".join(asdict(limits))
            raise ConfigError(f"--limit {text!r:.60}: {key!r:.40} is not a limit; use {known}")
        if not value.isdecimal() or len(value) > 15 or not int(value):
            raise ConfigError(f"--limit {text!r:.60}: {key} is a whole number above 0")
        chosen[key] = int(value)
    return replace(limits, **chosen)
