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


def plans_and_works(task: Any, base_url: str, api_key: str) -> dict[str, Any]:
    """Asks one model for a plan, and another for the answer; a model of another name is refused."""

    def ask(model: str, content: str) -> httpx.Response:
        return httpx.post(
            f"{base_url}/chat/completions",
            json={"model": model, "messages": [{"role": "user", "content": content}]},
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=120,
            trust_env=False,
        )

    plan = ask("planner", task.messages[-1].content).raise_for_status().json()["choices"][0]["message"]["content"]
    answer = ask("worker", plan or "1").raise_for_status().json()["choices"][0]["message"]["content"]
    refused = ask("gpt-6", "hello")
    assert refused.status_code == 404
    assert "which are planner, worker" in refused.json()["error"]["message"]
    return {"rewards": {"planner": len(plan), "worker": -len(answer)}}
