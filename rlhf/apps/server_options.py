"""Options that all `rlhf serve` commands share: host names, TLS and limits of the server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rlhf.http.binding import Access, HttpLimits, check_binding, check_tls, is_loopback, limits_from

Names = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Host name by which clients reach it; may be repeated.")
]
Certificate = Annotated[Path | None, typer.Option(metavar="FILE.pem", help="Certificate for TLS.")]
Key = Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The certificate's key.")]
LimitTexts = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="For instance connections=8192 (docs/security.md); may be repeated."),
]


def access_of(
    names: Sequence[str] | None,
    certificate: Path | None,
    key: Path | None,
    given: Sequence[str] | None,
    limits: HttpLimits,
) -> Access:
    """Return the access settings from the options; `limits` are the server's defaults. Raises `ConfigError`."""
    return Access(
        names=tuple(names or ()), certificate=certificate, key=key, limits=limits_from(list(given or ()), limits)
    )


def check_reach(host: str, token: str | None, access: Access) -> None:
    """Raise `ConfigError` for a server that anyone could use, or with an invalid certificate. Print a warning for one
    that other machines reach without TLS."""
    check_binding(host, token)
    check_tls(access)
    if access.certificate is None and not is_loopback(host):
        print(
            f"warning: requests to host {host} and their token travel in plain text; give --certificate and --key on a "
            "shared network",
            file=sys.stderr,
        )
