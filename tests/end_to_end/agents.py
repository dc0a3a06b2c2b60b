"""An agent as somebody else may write one: plain HTTP, and nothing of this project."""

from __future__ import annotations

from typing import Any

import httpx


def sorts(task: Any, base_url: str, api_key: str) -> float:
    """Asks for the sorted digits, and says whether they were right."""
    messages = [{"role": message.role, "content": message.content} for message in task.messages]
    answer = httpx.post(
        f"{base_url}/chat/completions",
        json={"model": "policy", "messages": messages},
        headers={"Authorization": f"Bearer {api_key}"},
        timeout=120,
        trust_env=False,
    ).raise_for_status()
    return float(answer.json()["choices"][0]["message"]["content"] == task.answer)
