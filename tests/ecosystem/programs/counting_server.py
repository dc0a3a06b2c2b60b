"""A server of OpenEnv itself that counts: `counting_server.py PORT MAX_SESSIONS LOG`. Runs in OpenEnv's virtual
environment. A reward is the number of its step; every step that is executed is a line of LOG."""

import sys
import uuid

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    """One required text."""

    message: str


class Heard(Observation):
    """What is said back."""

    said: str = ""


class Counting(Environment):
    """Three steps."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state, self._id = State(), uuid.uuid4().hex

    def reset(self, seed=None, episode_id=None, **others):
        self._state = State(episode_id=episode_id, step_count=0)
        return Heard(said="go")

    def step(self, action, timeout_s=None, **others):
        self._state.step_count += 1
        with open(sys.argv[3], "a") as log:
            log.write(f"{self._id}-{self._state.step_count}\n")
        return Heard(said="more", reward=float(self._state.step_count), done=self._state.step_count >= 3)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_app(Counting, Say, Heard, env_name="counting", max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
