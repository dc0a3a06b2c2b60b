"""Processes of environments: `python -m rlhf.env.hosting.environment_process FACTORY FD PARENT_PID`. The first request
holds the arguments, in JSON. One process imports the module once, and forks for each session."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from rlhf.cluster.child_side import Connection, connect_to_parent
from rlhf.env.encoding import action_from, answer_data, dumps, spec_data, task_from
from rlhf.env.hosting.isolation import Factory, blocking, checked, load_spec, raised_failure
from rlhf.env.wire import Action, TaskData
from rlhf.errors import ConfigError, Raised, catch, traceback_of
from rlhf.protocols import AsyncEnvironment, LocalEnvironment


def environment_process_main(name: str, descriptor: int, parent: int) -> None:
    """Read the arguments, import, send the spec, and fork a process for every session."""
    connection = connect_to_parent(descriptor, parent)
    factory = Factory(name=name, arguments=json.loads(connection.first()))
    try:
        create = factory.load()
        spec = load_spec(factory, create)
    except ConfigError as error:
        connection.send(dumps({"problem": str(error)}))
        return
    connection.send(dumps({"spec": spec_data(spec)}))
    connection.fork_for_each(lambda session: serve_session(session, spec.name, create))


def serve_session(connection: Connection, name: str, create: Callable[[], LocalEnvironment | AsyncEnvironment]) -> None:
    """Make the environment, report it, and answer requests until the server closes its end."""
    environment = catch(lambda: blocking(create()), also=BaseException)
    if isinstance(environment, Raised):
        connection.send(dumps(failure_data(name, "open", environment)))
        return
    connection.send(dumps({"ready": True}))
    for request in connection:
        connection.send(answer_request(name, environment, json.loads(request)))
    environment.close()


def answer_request(name: str, environment: LocalEnvironment, request: dict[str, Any]) -> str:
    """Return the answer to one request as JSON: an observation, or the failure in its place."""

    def answer() -> str:
        if request["method"] == "reset":
            task = task_from(TaskData.model_validate(request["task"]))
            observation = environment.reset(task, seed=request["seed"])
        else:
            observation = environment.step(action_from(Action.model_validate(request["action"])))
        return dumps({"answer": answer_data(checked(name, observation))})

    text = catch(answer, also=BaseException)
    return dumps(failure_data(name, request["method"], text)) if isinstance(text, Raised) else text


def failure_data(name: str, method: str, raised: Raised) -> dict[str, Any]:
    """Return the failure of a method; the parent logs its traceback, once for all sessions."""
    failure = raised_failure(name, method, raised.error)
    data = {"kind": failure.kind, "detail": failure.detail}
    return data if failure is raised.error else data | {"traceback": traceback_of(raised.error)}


if __name__ == "__main__":
    environment_process_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
