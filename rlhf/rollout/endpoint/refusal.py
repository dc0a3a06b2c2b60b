"""Error responses of the endpoint."""

from __future__ import annotations

from rlhf.errors import RlhfError


class ChatRefused(RlhfError):
    """A request that receives an error response: its `status`, one word as `code`, and what was wrong with `param`."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    @property
    def again(self) -> bool:
        """Whether the same request may succeed later. OpenAI's clients retry after a 409 unless the answer says
        otherwise."""
        return self.status >= 500

    def as_json(self) -> dict[str, object]:
        """Return the error in OpenAI's format."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        message = self.message.encode(errors="replace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}
