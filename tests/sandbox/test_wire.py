"""What is asked of a sandbox's server can be written, whatever a policy wrote."""

from __future__ import annotations

import pytest

from rlhf.http.client import json_body
from rlhf.sandbox.program import Program
from rlhf.sandbox.wire import RunCodeRequest, program_of, request_of


@pytest.mark.parametrize("text", ["\ud800", "print('\udfff')", "é\0😀"])
def test_half_a_character_reaches_a_server_as_it_reaches_a_file(text: str) -> None:
    body = json_body(request_of(Program(code=text, stdin=text.encode(errors="replace"))))
    received = program_of(RunCodeRequest.model_validate_json(body))
    assert received.code.encode() == text.encode(errors="replace")
    assert received.stdin == text.encode(errors="replace")
