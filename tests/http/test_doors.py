"""The doors of a server on a real socket: who may pass, with how much, and what the others are told."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlhf.http.doors import BearerToken, BodyLimit
from tests.servers import running

MOST = 1000
LONG, UNANNOUNCED, DENIED = {"detail": "long"}, {"detail": "how long?"}, {"error": {"who": "are you"}}


async def length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


APP = Starlette(routes=[Route(path, length, methods=["GET", "POST"]) for path in ("/", "/health")])


def pieces(count: int) -> Iterator[bytes]:
    """A body that is sent piece by piece, its length not stated."""
    for _ in range(count):
        yield b"x" * 100


@pytest.mark.parametrize("body", [b"x" * MOST, pieces(10)], ids=["announced", "in pieces"])
def test_a_body_of_the_limit_arrives_whole(body: bytes | Iterator[bytes]) -> None:
    with running(BodyLimit(APP, MOST, LONG)) as url:
        assert httpx.post(url, content=body).text == str(MOST)


@pytest.mark.parametrize("body", [b"x" * (MOST + 1), pieces(11)], ids=["announced", "in pieces"])
def test_a_longer_one_is_refused_in_the_caller_s_words(body: bytes | Iterator[bytes]) -> None:
    with running(BodyLimit(APP, MOST, LONG)) as url:
        refused = httpx.post(url, content=body)
        assert (refused.status_code, refused.json()) == (413, LONG)
        assert httpx.post(url, content=b"x").text == "1", "the server goes on"


def test_a_length_may_have_to_be_stated() -> None:
    with running(BodyLimit(APP, MOST, LONG, unannounced=UNANNOUNCED)) as url:
        refused = httpx.post(url, content=pieces(1))
        assert (refused.status_code, refused.json()) == (411, UNANNOUNCED)
        assert httpx.post(url, content=b"x").text == "1"


@pytest.mark.parametrize(("tries_token", "with_a_wrong_one"), [(False, 200), (True, 401)])
def test_health_is_open_and_may_try_a_token(tries_token: bool, with_a_wrong_one: int) -> None:
    wrong, right = {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret"}
    with running(BearerToken(APP, "secret", DENIED, tries_token=tries_token)) as url:
        asked = [httpx.get(f"{url}/health", headers=headers).status_code for headers in ({}, wrong, right)]
        refused = [httpx.get(url, headers=headers) for headers in ({}, wrong, {"Authorization": "secret"})]
        assert httpx.get(url, headers=right).status_code == 200
    assert asked == [200, with_a_wrong_one, 200]
    for answer in refused:
        assert (answer.status_code, answer.headers["www-authenticate"], answer.json()) == (401, "Bearer", DENIED)
