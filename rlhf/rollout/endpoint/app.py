"""HTTP server of the policy with OpenAI's and Anthropic's APIs: requests of unmodified agents become episodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from rlhf.chat.reply_grammar import reply_grammar, unwritable
from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import LOOPBACK, POLICY, Access
from rlhf.http.serving import StrictRoute, unknown_path, uvicorn_config
from rlhf.rollout.endpoint.front import UNNAMED, EndSessionRequest, Front, OpenSessionRequest
from rlhf.rollout.endpoint.marks import AgentRequest
from rlhf.rollout.endpoint.sessions import AgentSession, AgentSessions, ChatRefused, ClientGone, unknown_answer
from rlhf.rollout.endpoint.wires.chat import CHAT, COMPLETIONS
from rlhf.rollout.endpoint.wires.messages import MESSAGES, MessagesRequest
from rlhf.rollout.endpoint.wires.responses import RESPONSES
from rlhf.rollout.endpoint.wires.wire import Answer, Wire, WireRequest

ACCESS = Access(limits=POLICY)
GOODBYE_SECONDS = 2
"""Time that running requests have to finish when the server shuts down."""
IGNORED_HEADER = "x-rlhf-ignored"
"""Response header: the fields of the request that were ignored."""
KEEP_ALIVE_SECONDS = 10.0
"""How long a stream may be silent: many clients give up a connection on which nothing comes for a minute."""
WIRES = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def policy_app(
    sessions: AgentSessions,
    *,
    model: str,
    token: str | None,
    front: Front | None = None,
    access: Access = ACCESS,
    host: str = LOOPBACK,
    refused: Counter[str] | None = None,
) -> AccessMiddleware:
    """Return an ASGI application that serves `model` in `sessions`, each at `/sessions/ID/v1`. With a `front`, clients
    open sessions themselves, `/v1` serves clients without a session, and seeds in requests are used. `refused` counts
    requests by status and reason."""
    app = FastAPI(title=f"policy {model}", exception_handlers=_HANDLERS)
    app.state.refused = Counter[str]() if refused is None else refused
    app.router.route_class, app.router.default = StrictRoute, unknown_path
    routes = Routes(sessions, model, front)
    app.get("/health")(routes.health)
    for base in ("/sessions/{session_id}", *([""] if front else [])):
        app.head(base or "/")(routes.here)
        app.get(f"{base}/v1/models")(routes.models)
        app.get(f"{base}/v1/models/{{name:path}}")(routes.model)
        app.post(f"{base}/v1{MESSAGES.path}/count_tokens")(routes.count)
        for wire in WIRES:
            app.post(f"{base}/v1{wire.path}", response_model=None)(routes.answering(wire))
    if front is not None:
        app.post("/sessions")(routes.open)
        app.post("/sessions/{session_id}/end")(routes.end)
    return AccessMiddleware(app, _denied, access, host=host, token=token)


def policy_uvicorn_config(
    app: AccessMiddleware, access: Access = ACCESS, *, host: str = LOOPBACK, port: int = 0
) -> uvicorn.Config:
    return uvicorn_config(app, access, host=host, port=port, lifespan="off", timeout_graceful_shutdown=GOODBYE_SECONDS)


class Routes:
    def __init__(self, sessions: AgentSessions, model: str, front: Front | None) -> None:
        self._sessions, self._model, self._front = sessions, model, front

    async def health(self) -> dict[str, Any]:
        return {"status": "healthy", "model": self._model, "sessions": len(self._sessions)}

    async def here(self) -> Response:
        """Answer a client that tries the address before it asks."""
        return Response()

    async def models(self, request: Request) -> dict[str, Any]:
        session_id = request.path_params.get("session_id")
        names = self._sessions.find(session_id).of if session_id else ()
        return {"object": "list", "data": [_model(name) for name in names or (self._model,)], "has_more": False}

    async def model(self, name: str) -> dict[str, Any]:
        """Any name is the policy's: agents ask for the model that they are set to."""
        return _model(name)

    def answering(self, wire: Wire) -> Callable[..., Coroutine[Any, Any, Response]]:
        """Return the route of a wire, whose body is its request."""

        async def answer(body: WireRequest, request: Request) -> Response:
            return await self._answered(wire, body, request)

        answer.__annotations__["body"] = wire.request  # what FastAPI parses the body as
        return answer

    async def count(self, body: MessagesRequest, request: Request) -> dict[str, int]:
        """Return the length of the prompt that a request would have."""
        asked = body.wanted().asked(seeds=False)
        session = self._session_for(request, asked, None, counting=True).of_model(body.model)
        return {"input_tokens": session.prompt_tokens(asked)}

    async def open(self, request: Request, named: OpenSessionRequest | None = None) -> dict[str, Any]:
        assert self._front is not None
        session = self._front.open(named or UNNAMED)
        return {"id": session.id, "base_url": f"{request.base_url}sessions/{session.id}/v1"}

    async def end(self, session_id: str, ending: EndSessionRequest) -> dict[str, Any]:
        """End the episode with its `reward`; null where the reward is unknown."""
        assert self._front is not None
        return self._front.end(self._sessions.find(session_id), ending.reward)

    def _session_for(
        self, request: Request, asked: AgentRequest, follows: str | None, *, counting: bool = False
    ) -> AgentSession:
        if (session_id := request.path_params.get("session_id")) is not None:
            return self._sessions.find(session_id)
        assert self._front is not None
        return self._front.session_of(asked, request.headers, follows, counting=counting)

    async def _answered(self, wire: Wire, body: WireRequest, request: Request) -> Response:
        wanted, seeds, structured = body.wanted(), self._front is not None, self._sessions.structured
        if missed := wanted.missed(stops=self._sessions.client_stop == "cut"):
            raise ChatRefused(400, "not_supported", missed[1], missed[0])
        session = self._session_for(request, wanted.asked(seeds=seeds), body.follows).of_model(body.model)
        if body.follows is not None:
            if body.follows not in session.answers:
                raise unknown_answer(body.follows)
            wanted = body.wanted(*session.answers[body.follows])
        asked = wanted.asked(seeds=seeds)
        if structured:
            held = body.tool_choice, wanted.tools, wanted.form, session.tool_format
            if missed := unwritable(*held, field=wanted.names[1]):
                raise ChatRefused(400, "not_supported", missed[1], missed[0])
            asked = replace(asked, structure=reply_grammar(*held))

        async def answered() -> Answer[Any]:
            replied = await session.reply(asked, partial(_gone, request))
            name, model = f"{wire.prefix}{uuid4().hex}", body.model or self._model
            answer = wire.answer(id=name, request=body, replied=replied, model=model, text=session.text)
            session.answers[answer.id] = (*wanted.conversation, replied.message), wanted.tools
            return answer

        ignored = wanted.ignored(seeds=seeds, structured=structured)
        headers = {IGNORED_HEADER: ", ".join(ignored)} if ignored else None
        if not body.stream:
            return JSONResponse((await answered()).whole(), headers=headers)
        answering = asyncio.ensure_future(answered())
        try:
            await asyncio.wait((answering,), timeout=KEEP_ALIVE_SECONDS)
            if answering.done():
                answering.result()
        except asyncio.CancelledError:
            answering.cancel()
            raise
        events = _events(wire, answering, request.app.state.refused)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _model(name: str) -> dict[str, Any]:
    """Return a model in the formats of OpenAI and Anthropic."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "rlhf"}
    return openai | {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


async def _events(wire: Wire, answering: asyncio.Task[Answer[Any]], refused: Counter[str]) -> AsyncIterator[bytes]:
    """Iterate over the events of an answer, and until it is there over those that keep the connection."""
    try:
        while not answering.done():
            yield wire.alive
            await asyncio.wait((answering,), timeout=KEEP_ALIVE_SECONDS)
        for one in answering.result().stream():
            yield one
    except ChatRefused as error:
        refused[_reason(error)] += 1
        yield wire.failed(error)
    except ClientGone:
        pass
    finally:
        answering.cancel()


async def _gone(request: Request) -> None:
    """Wait until the client disconnects; the request's body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _wire_of(request: Request) -> Wire:
    return next((wire for wire in WIRES if f"/v1{wire.path}" in request.url.path), CHAT)


def _reason(error: ChatRefused) -> str:
    return f"{error.status} {error.param or error.code}"


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ChatRefused)
    request.app.state.refused[_reason(error)] += 1
    # The clients of OpenAI and Anthropic retry after a 409 unless the answer says otherwise.
    headers = {"Retry-After": "1"} if error.status >= 500 else {"x-should-retry": "false"}
    return JSONResponse(_wire_of(request).error(error), status_code=error.status, headers=headers)


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Return a validation error as a response, without repeating the body."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return await _refused(request, ChatRefused(400, "invalid", f"the body cannot be read: {first['ctx']['error']}"))
    place = ".".join(str(part) for part in first["loc"][1:])
    return await _refused(request, ChatRefused(400, "invalid", f"{place or 'the body'}: {first['msg']}", place or None))


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an unknown path or method, or for a body that is not JSON."""
    assert isinstance(error, HTTPException)
    return await _refused(request, ChatRefused(error.status_code, "invalid", str(error.detail)))


def _denied(status: int, why: str) -> dict[str, object]:
    """Return the response for a request that is refused before it reaches a route. Clients of Anthropic look for its
    `type`."""
    return {"type": "error"} | ChatRefused(
        status, {401: "denied", 503: "capacity"}.get(status, "invalid"), why
    ).as_json()


_HANDLERS: Any = {
    ChatRefused: _refused, ClientGone: _left, RequestValidationError: _invalid, HTTPException: _unknown
}  # fmt: skip
