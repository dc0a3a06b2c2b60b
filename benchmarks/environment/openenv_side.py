"""The same environment on OpenEnv's own server: `openenv_side.py PORT MAX_SESSIONS`, in its virtual environment."""

import sys

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    """One text."""

    text: str


class Heard(Observation):
    """What was said."""

    text: str = ""


class Echo(Environment):
    """Never ends. A reward is the length of what was said."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **others):
        return Heard(text="hello")

    def step(self, action, timeout_s=None, **others):
        return Heard(text=action.text, reward=float(len(action.text)))

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_app(Echo, Say, Heard, env_name="echo", max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
