"""HTTP server of the policy with OpenAI's API: requests of unmodified agents are captured as episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import LOOPBACK, POLICY, Access
from rlhf.http.serving import StrictRoute, unknown_path, uvicorn_config
from rlhf.rollout.endpoint.answers import ChatResponse
from rlhf.rollout.endpoint.front import UNNAMED, EndSessionRequest, Front, OpenSessionRequest
from rlhf.rollout.endpoint.marks import AgentRequest
from rlhf.rollout.endpoint.sessions import AgentSession, AgentSessions, ChatRefused, ClientGone
from rlhf.rollout.endpoint.wire import ChatRequest

ACCESS = Access(limits=POLICY)
GOODBYE_SECONDS = 2
"""Time that running requests have to finish when the server shuts down."""
IGNORED_HEADER = "x-rlhf-ignored"
"""Response header: the fields of the request that were ignored."""
CHAT, MODELS = "/chat/completions", "/models"
_SPOKEN = "this server speaks OpenAI's Chat Completions (POST .../v1/chat/completions), not"
WIRES = {
    "/responses": f"{_SPOKEN} Responses; with openai-agents call set_default_openai_api('chat_completions') or use "
    "OpenAIChatCompletionsModel",
    "/messages": f"{_SPOKEN} Anthropic's Messages; use an agent that can call Chat Completions",
}
"""Paths of other APIs that agents call, and what to do instead."""


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
    app.get(f"/sessions/{{session_id}}/v1{MODELS}")(routes.models)
    app.post(f"/sessions/{{session_id}}/v1{CHAT}", response_model=None)(routes.chat)
    if front is not None:
        app.get(f"/v1{MODELS}")(routes.models)
        app.post(f"/v1{CHAT}", response_model=None)(routes.chat_alone)
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

    async def models(self) -> dict[str, Any]:
        entry = {"id": self._model, "object": "model", "created": 0, "owned_by": "rlhf"}
        return {"object": "list", "data": [entry]}

    async def chat(self, session_id: str, body: ChatRequest, request: Request) -> Response:
        return await self._answered(lambda asked: self._sessions.find(session_id), body, request)

    async def chat_alone(self, body: ChatRequest, request: Request) -> Response:
        """Return a reply to a request without a session, in the one whose conversation it continues, or a new one."""
        assert self._front is not None
        return await self._answered(self._front.session_of, body, request)

    async def open(self, request: Request, named: OpenSessionRequest | None = None) -> dict[str, Any]:
        assert self._front is not None
        session = self._front.open(named or UNNAMED)
        return {"id": session.id, "base_url": f"{request.base_url}sessions/{session.id}/v1"}

    async def end(self, session_id: str, ending: EndSessionRequest) -> dict[str, Any]:
        """End the episode with its `reward`; null where the reward is unknown."""
        assert self._front is not None
        return self._front.end(self._sessions.find(session_id), ending.reward)

    async def _answered(
        self, session_for: Callable[[AgentRequest], AgentSession], body: ChatRequest, request: Request
    ) -> Response:
        if missed := body.missed(stops=self._sessions.client_stop == "cut"):
            name, why = missed
            raise ChatRefused(400, "not_supported", why, name)
        asked, structured = body.asked(seeds=self._front is not None), self._sessions.structured
        session = session_for(asked)
        if structured:
            if missed := body.unwritable(session.tool_format):
                raise ChatRefused(400, "not_supported", missed[1], missed[0])
            asked = replace(asked, structure=body.structure(session.tool_format))
        replied = await session.reply(asked, partial(_gone, request))
        answer = ChatResponse(request=body, replied=replied, model=body.model or self._model, text=session.text)
        ignored = body.ignored(seeds=self._front is not None, structured=structured)
        headers = {IGNORED_HEADER: ", ".join(ignored)} if ignored else None
        if body.stream:
            return StreamingResponse(answer.stream(), media_type="text/event-stream", headers=headers)
        return JSONResponse(answer.completion(), headers=headers)


async def _gone(request: Request) -> None:
    """Wait until the client disconnects; the request's body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ChatRefused)
    request.app.state.refused[f"{error.status} {error.param or error.code}"] += 1
    # OpenAI's clients retry after a 409 unless the answer says otherwise.
    headers = {"Retry-After": "1"} if error.status >= 500 else {"x-should-retry": "false"}
    return JSONResponse(error.as_json(), status_code=error.status, headers=headers)


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
    if told := next((told for path, told in WIRES.items() if request.url.path.endswith(path)), None):
        return await _refused(request, ChatRefused(404, "unknown_wire", told))
    return await _refused(request, ChatRefused(error.status_code, "invalid", str(error.detail)))


def _denied(status: int, why: str) -> dict[str, object]:
    """Return the response for a request that is refused before it reaches a route."""
    return ChatRefused(status, {401: "denied", 503: "capacity"}.get(status, "invalid"), why).as_json()


_HANDLERS: Any = {
    ChatRefused: _refused, ClientGone: _left, RequestValidationError: _invalid, HTTPException: _unknown
}  # fmt: skip
