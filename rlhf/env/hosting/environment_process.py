"""Processes of environments: `python -m rlhf.env.hosting.environment_process FACTORY SOCKET_FD PARENT_PID`.

The first line on the socket contains the arguments, in JSON. One process imports the environment's module once, and
forks a child for each session: a start takes milliseconds, and memory of the module is shared. A child answers
requests, lines of JSON, on its own socket.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from rlhf.cluster.attempt import Raised, attempt
from rlhf.cluster.parent_death import die_with_parent
from rlhf.env.encoding import action_from, answer_data, dumps, spec_data, task_from
from rlhf.env.hosting.isolation import Factory, checked, exception_line, load_spec
from rlhf.env.wire import Action, TaskData
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.protocols import LocalEnvironment
from rlhf.types import Observation


def environment_process_main(name: str, descriptor: int, parent: int) -> None:
    """Read the arguments, import, send the spec, and fork a child for every socket that is received."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    with socket.socket(fileno=descriptor) as control:
        factory = Factory(name=name, arguments=json.loads(read_first_line(control)))
        try:
            create = factory.load()
            spec = load_spec(factory, create)
        except ConfigError as error:
            control.sendall(line({"problem": str(error)}))
            return
        control.sendall(line({"spec": spec_data(spec)}))
        while True:
            received, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not received:
                return
            with socket.socket(fileno=descriptors[0]) as channel:
                if (here := os.getpid()) and os.fork() == 0:
                    control.close()
                    become_child(channel, spec.name, create, here)


def read_first_line(control: socket.socket) -> bytes:
    """The bytes up to the end of the first line; the other side sends nothing more before it is answered."""
    received = b""
    while not received.endswith(b"\n"):
        part = control.recv(65536)
        if not part:
            sys.exit(1)
        received += part
    return received


def become_child(channel: socket.socket, name: str, create: Callable[[], LocalEnvironment], parent: int) -> None:
    """Serve one session and exit in every case."""
    try:
        os.setsid()  # a process group can be killed as a whole
        die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve_requests(channel, name, create)
    finally:
        os._exit(0)


def serve_requests(channel: socket.socket, name: str, create: Callable[[], LocalEnvironment]) -> None:
    """Make the environment, report it, and answer requests until the server closes its end."""
    with channel.makefile("rwb") as stream:
        stream.write(line({"process": os.getpid()}))
        stream.flush()
        environment = attempt(create, also=BaseException)
        if isinstance(environment, Raised):
            stream.write(line({"kind": "raised", "detail": exception_line(environment.error)}))
            return
        stream.write(line({"ready": True}))
        stream.flush()
        for request in stream:
            stream.write(line(answer_request(name, environment, json.loads(request))))
            stream.flush()
        environment.close()


def answer_request(name: str, environment: LocalEnvironment, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request: an observation, or the failure in its place."""
    said = attempt(lambda: answer_data(checked(name, call_environment(environment, request))), also=BaseException)
    if not isinstance(said, Raised):
        return {"answer": said}
    if isinstance(said.error, EnvironmentFailed):
        return {"kind": said.error.kind, "detail": said.error.detail}
    return {"kind": "raised", "detail": f"{request['method']}: {exception_line(said.error)}"}


def call_environment(environment: LocalEnvironment, request: dict[str, Any]) -> Observation:
    """Call the method that the request names."""
    if request["method"] == "reset":
        return environment.reset(task_from(TaskData.model_validate(request["task"])), seed=request["seed"])
    return environment.step(action_from(Action.model_validate(request["action"])))


def line(data: dict[str, Any]) -> bytes:
    """One line of JSON, as sent over the socket."""
    return dumps(data).encode() + b"\n"


if __name__ == "__main__":
    environment_process_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
