"""FastAPI routes that parse request bodies strictly."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from rlhf.http.strict_json import read_strict_json


class StrictRequest(Request):
    """A request whose body is parsed by `read_strict_json`."""

    async def json(self) -> Any:
        """Raises `json.JSONDecodeError`, which FastAPI treats as a body that is not JSON."""
        try:
            return read_strict_json(await self.body())
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


class StrictRoute(APIRoute):
    """A route that uses `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly
