"""The server of the page: static files, and answers in JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles

from rlhf.apps.dashboard.answers import (
    EpisodeKey,
    episode_answer,
    episodes_answer,
    groups_answer,
    image_answer,
    overview,
    players_answer,
    timeline,
)
from rlhf.apps.dashboard.export import ExportForm, exported
from rlhf.apps.dashboard.library import Library, records_state
from rlhf.apps.dashboard.page_access import PageAccess, start_page
from rlhf.apps.dashboard.system import system
from rlhf.errors import UserError
from rlhf.http.binding import LOOPBACK, Access
from rlhf.runs.episode_query import Question
from rlhf.runs.folder import RunFolder
from rlhf.runs.stored_run import read_run

STATIC = Path(__file__).parent / "static"
LOOK_SECONDS = 1.0
"""How often a running run is read."""
MOST_ROWS = 1000
MOST_GROUPS = 100
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Nothing of other origins is loaded, and no inline script runs."""


def dashboard_app(
    library: Library,
    token: str | None = None,
    ended: Callable[[], bool] = lambda: False,
    *,
    host: str = LOOPBACK,
    access: Access | None = None,
) -> PageAccess:
    """Return the application, protected by checks of host name, origin and token. Streams end once the server has
    `ended`, which waits for them."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(UserError)
    async def refused(_: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    @app.middleware("http")
    async def with_headers(request: Request, answer: Any) -> Any:
        response = await answer(request)
        response.headers.update(HEADERS)
        return response

    app.get("/")(start_page)

    @app.get("/api/runs")
    def runs() -> list[dict[str, Any]]:
        return [library.card(name) for name in library.runs]

    @app.get("/api/run")
    def facts(run: str) -> dict[str, Any]:
        return library.card(run)

    @app.get("/api/overview")
    def of_run(run: str) -> dict[str, Any]:
        return overview(read_run(library.folder(run).path))

    @app.get("/api/system")
    def of_workers(run: str) -> dict[str, Any]:
        return system(library.folder(run), library.episodes(run))

    @app.get("/api/timeline")
    def of_update(run: str, update: int | None = None) -> dict[str, Any]:
        return timeline(library.folder(run), update)

    @app.get("/api/live")
    def live(run: str = "") -> StreamingResponse:
        folders = (lambda: [library.folder(run)]) if run else (lambda: list(map(library.folder, library.runs)))
        return StreamingResponse(live_events(folders, ended), media_type="text/event-stream")

    _serve_episodes(app, library)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return PageAccess(app, refusal, access or Access(), host=host, token=token)


def _serve_episodes(app: FastAPI, library: Library) -> None:
    @app.get("/api/episodes")
    def of_episodes(
        run: str, view: str = "episodes", where: str = "", order: str = "", limit: int = 100
    ) -> dict[str, Any]:
        question = Question(where=where or None, order=order or None, limit=min(max(limit, 1), MOST_ROWS))
        return episodes_answer(library.episodes(run), view, question, library.folder(run))

    @app.get("/api/players")
    def of_players(run: str, view: str = "episodes") -> dict[str, list[str]]:
        return players_answer(library.episodes(run), view, library.folder(run))

    @app.get("/api/groups")
    def of_groups(
        run: str, view: str = "episodes", where: str = "", order: str = "", limit: int = 10
    ) -> list[dict[str, Any]]:
        question = Question(where=where or None, order=order or None, limit=min(max(limit, 1), MOST_GROUPS))
        return groups_answer(library.episodes(run), view, question, library.folder(run))

    @app.get("/api/export")
    def of_selection(run: str, form: ExportForm, view: str = "episodes", where: str = "") -> StreamingResponse:
        return exported(library.episodes(run), view, where or None, form)

    @app.get("/api/episode")
    def of_episode(
        run: str, ordinal: int, sample: int, version: int, view: str = "episodes", set: str | None = None
    ) -> dict[str, Any]:
        key = EpisodeKey(view=view, ordinal=ordinal, sample=sample, version=version, evaluation_set=set)
        return episode_answer(library.episodes(run), key, library.folder(run))

    @app.get("/api/image")
    def of_image(run: str, sha256: str) -> FileResponse:
        file, media_type = image_answer(sha256, library.folder(run))
        return FileResponse(file, media_type=media_type)


async def live_events(folders: Callable[[], Sequence[RunFolder]], ended: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield a server-sent event now, and whenever there are other runs or their records have grown."""
    told = None
    while not ended():
        state = await asyncio.to_thread(lambda: [records_state(folder) for folder in folders()])
        if state != told:
            told = state
            yield f"data: {json.dumps(state)}\n\n"
        await asyncio.sleep(LOOK_SECONDS)


def refusal(status: int, why: str) -> Mapping[str, Any]:
    words = "open the address that `rlhf view` printed, with its token, or send it as a bearer token"
    return {"error": words if status == 401 else why}
