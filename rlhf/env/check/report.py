"""`rlhf env check`: every conformance check against a live server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

import httpx

from rlhf.env.answers import Undecodable
from rlhf.env.check.checks import CHECKS, Check
from rlhf.env.check.probe import ANSWER_SECONDS, Failing, NotApplicable, Target, example
from rlhf.env.client.remote import Address, Broken
from rlhf.env.client.servers import get
from rlhf.env.wire import EXTRAS_VERSION, Json
from rlhf.errors import UserError

CHECK_SECONDS = 300.0


class CheckOutcome(StrEnum):
    """The outcome of a conformance check."""

    PASS = "pass"
    FAIL = "FAIL"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    name: str
    verdict: CheckOutcome
    detail: str


async def check_server(address: Address, action: Json | None = None) -> AsyncIterator[CheckResult]:
    """The results, one by one. `action` is a valid action of the environment; by default one is made from its schema.

    Raises `UserError` when no server answers.
    """
    async with httpx.AsyncClient(
        base_url=address.url, headers=address.headers, timeout=ANSWER_SECONDS, trust_env=False
    ) as http:
        target = await find_target(address, http, action)
        for name, check in CHECKS.items():
            yield await run_one_check(name, check, target)


async def find_target(address: Address, http: httpx.AsyncClient, action: Json | None) -> Target:
    """Query the server's metadata and choose an action. Raises `UserError` when no environment server answers."""
    try:
        metadata, schema = await get(http, "/metadata"), await get(http, "/schema")
    except (httpx.HTTPError, Undecodable, Broken, ValueError) as error:
        raise UserError(f"{address.url} is no environment server: {type(error).__name__}: {error}") from None
    extras: Json = metadata.get("extras") or {}
    known = extras if extras.get("version") == EXTRAS_VERSION else {}
    chosen = example(schema.get("action") or {}) if action is None else action
    return Target(address=address, http=http, metadata=metadata, action=chosen, extras=known)


async def run_one_check(name: str, check: Check, target: Target) -> CheckResult:
    """Run one check within its deadline; failures become its result."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return CheckResult(name=name, verdict=CheckOutcome.PASS, detail=await check(target))
    except NotApplicable as reason:
        return CheckResult(name=name, verdict=CheckOutcome.NOT_APPLICABLE, detail=str(reason))
    except Failing as problem:
        return CheckResult(name=name, verdict=CheckOutcome.FAIL, detail=str(problem))
    except TimeoutError:
        return CheckResult(name=name, verdict=CheckOutcome.FAIL, detail=f"not over after {CHECK_SECONDS:g} s")
