"""The doors of a server on a real socket: who may pass, with how much, and what the others are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import Access
from rlhf.http.limits import HttpLimits
from rlhf.http.serving import with_access
from tests.servers import running

MOST = 1000
JSON = {"Content-Type": "application/json"}


async def length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


APP = Starlette(routes=[Route(path, length, methods=["GET", "POST"]) for path in ("/", "/health")])


def doors(
    names: tuple[str, ...] = (), host: str = "127.0.0.1", waiting: int = 10_000, **rules: Any
) -> AccessMiddleware:
    access = Access(names=names, limits=HttpLimits(body_bytes=MOST, waiting_bytes=waiting))
    return with_access(APP, lambda status, why: {"status": status, "why": why}, access, host=host, **rules)


def pieces(count: int) -> Iterator[bytes]:
    """A body that is sent piece by piece, its length not stated."""
    for _ in range(count):
        yield b"x" * 100


@pytest.mark.parametrize("body", [b"x" * MOST, pieces(10)], ids=["announced", "in pieces"])
def test_a_body_of_the_limit_arrives_whole(body: bytes | Iterator[bytes]) -> None:
    with running(doors()) as url:
        assert httpx.post(url, content=body, headers=JSON).text == str(MOST)


@pytest.mark.parametrize("body", [b"x" * (MOST + 1), pieces(11)], ids=["announced", "in pieces"])
def test_a_longer_one_is_refused_in_the_caller_s_words(body: bytes | Iterator[bytes]) -> None:
    with running(doors()) as url:
        refused = httpx.post(url, content=body, headers=JSON)
        told = {"status": 413, "why": f"the body is longer than {MOST} bytes"}
        assert (refused.status_code, refused.json()) == (413, told)
        assert httpx.post(url, content=b"x", headers=JSON).text == "1", "the server goes on"


def test_a_length_may_have_to_be_stated() -> None:
    with running(doors(needs_length=True)) as url:
        refused = httpx.post(url, content=pieces(1), headers=JSON)
        assert (refused.status_code, refused.json()["status"]) == (411, 411)
        assert httpx.post(url, content=b"x", headers=JSON).text == "1"


def test_all_bodies_together_have_a_limit_and_an_answered_one_gives_its_bytes_back() -> None:
    with running(doors(waiting=MOST - 1)) as url:
        for _ in range(3):
            assert httpx.post(url, content=b"x" * (MOST - 1), headers=JSON).status_code == 200
        full = httpx.post(url, content=b"x" * MOST, headers=JSON)
    assert (full.status_code, full.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(("tries_token", "with_a_wrong_one"), [(False, 200), (True, 401)])
def test_health_is_open_and_may_try_a_token(tries_token: bool, with_a_wrong_one: int) -> None:
    wrong, right = {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret"}
    with running(doors(token="secret", tries_token=tries_token)) as url:
        asked = [httpx.get(f"{url}/health", headers=headers).status_code for headers in ({}, wrong, right)]
        refused = [httpx.get(url, headers=headers) for headers in ({}, wrong, {"Authorization": "secret"})]
        assert httpx.get(url, headers=right).status_code == 200
    assert asked == [200, with_a_wrong_one, 200]
    for answer in refused:
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_only_a_get_of_health_is_open() -> None:
    with running(doors(token="secret")) as url:
        assert httpx.post(f"{url}/health", content=b"x", headers=JSON).status_code == 401


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json5"])
def test_a_body_that_a_page_could_send_unasked_is_refused(kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    with running(doors()) as url:
        assert httpx.post(url, content=b"{}", headers=headers).status_code == 415
        assert httpx.post(url, content=b"{}", headers={"Content-Type": "Application/JSON; charset=utf-8"}).text == "2"
        assert httpx.post(url).text == "0", "without a body there is nothing to name"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:1", 200), ("localhost.:80", 200), ("127.9.9.9", 200), ("[::1]:80", 200),
        ("known.example", 200), ("Known.Example:443", 200),
        ("rebound.example", 421), ("127.0.0.1.rebound.example", 421), ("10.1.2.3", 421), ("0.0.0.0", 421),
        ("localhost@rebound.example", 421), ("rebound.example,localhost", 421), ("localhost:port", 421),
        ("localhost/rebound.example", 421), ("[::1", 421), ("", 421), (":80", 421),
    ],
)  # fmt: skip
def test_a_server_is_asked_by_its_names_only(host: str, status: int) -> None:
    with running(doors(names=("Known.Example",))) as url:
        assert httpx.get(url, headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200), ("null", 403), ("http://foreign.example", 403), ("http://localhost:9", 403),
        ("http://localhost", 403), ("", 403), ("http://localhost:8000.foreign.example", 403),
    ],
)  # fmt: skip
def test_a_page_of_another_origin_may_not_ask(origin: str, status: int) -> None:
    with running(doors()) as url:
        asked = httpx.get(url, headers={"Host": "localhost:8000", "Origin": origin})
    assert asked.status_code == status
