"""`rlhf env check` tests whether a running environment server follows the protocol."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from rlhf.apps.arguments import is_project
from rlhf.config import PIECE
from rlhf.env.check import check_server
from rlhf.env.client.remote import Address
from rlhf.errors import UserError
from rlhf.http.binding import token_from
from rlhf.untrusted_text import escape_to_line


def run_env_check(url: str, action: str | None = None, token_env: str | None = None) -> int:
    """Print one line per check; return 1 if one fails. Raises `UserError`."""
    if "://" not in url:
        served = PIECE.fullmatch(url) or is_project(Path(url))
        cure = f"serve it first: rlhf serve env {url}" if served else f"for instance http://{url}"
        raise UserError(f"{url!r} is not the URL of a server; {cure}")
    address = Address(url=url.rstrip("/"), token=token_from(token_env))
    given = json_object(action, "--action") if action is not None else None

    async def failures() -> int:
        failed = 0
        async for finding in check_server(address, given):
            state = "pass" if finding.passed else "FAIL"
            print(f"{state:<6}{finding.name:<22}{escape_to_line(finding.detail)}", flush=True)
            failed += not finding.passed
        return failed

    failed = asyncio.run(failures())
    print(f"{failed} failed" if failed else "conforms")
    return 1 if failed else 0


def json_object(text: str, option: str) -> dict[str, Any]:
    """Parse a JSON object from the command line, or from the file named after an `@`: other users can read command
    lines. Raises `UserError`."""
    try:
        value = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        raise UserError(f"{option} {text!r:.100} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{option} {text!r:.100} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f'{option} {text!r:.100} is not a JSON object, for instance \'{{"text": "1"}}\'')
    return value
