"""Routes of FastAPI that read bodies strictly."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from rlhf.http.strict_json import read_strict_json


class StrictRequest(Request):
    """One whose body is read by `read_strict_json`."""

    async def json(self) -> Any:
        """Raises `json.JSONDecodeError`, the one that FastAPI takes for a body that is no JSON."""
        try:
            return read_strict_json(await self.body())
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


class StrictRoute(APIRoute):
    """A route whose requests are strict."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly
