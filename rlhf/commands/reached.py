"""Options that every `rlhf serve` has: how a server is reached, and what it takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rlhf.http.binding import Access, check_binding, check_tls, is_loopback
from rlhf.http.limits import HttpLimits, limits_from

Names = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A host name that clients have for it; may be repeated.")
]
Certificate = Annotated[Path | None, typer.Option(metavar="FILE.pem", help="Speak TLS, with this certificate.")]
Key = Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The certificate's key.")]
LimitTexts = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="connections=8192, say; see docs/security-servers.md; may be repeated."),
]


def access_of(
    names: Sequence[str] | None,
    certificate: Path | None,
    key: Path | None,
    given: Sequence[str] | None,
    limits: HttpLimits,
) -> Access:
    """What the options say, over the `limits` that a server has without them. Raises `ConfigError`."""
    return Access(
        names=tuple(names or ()), certificate=certificate, key=key, limits=limits_from(list(given or ()), limits)
    )


def check_reach(host: str, token: str | None, access: Access) -> None:
    """Raises `ConfigError` for a server that anybody could use, or that has no certificate where it says so; warns of
    one that others reach in plain text."""
    check_binding(host, token)
    check_tls(access)
    if access.certificate is None and not is_loopback(host):
        print(
            f"warning: host {host} is asked in plain text, its token too; give --certificate and --key where others "
            "share the network",
            file=sys.stderr,
        )
