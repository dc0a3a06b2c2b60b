"""Where servers listen, and who may ask: loopback, or a token."""

from __future__ import annotations

import ipaddress

from rlhf.errors import ConfigError

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine as only it can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str | None) -> None:
    """Raises `ConfigError` for a server that others could reach and anybody could use."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host {host} can be reached from other machines, and there is no token; "
            f"name the environment variable that holds one with --token-env, or listen on {LOOPBACK}"
        )
