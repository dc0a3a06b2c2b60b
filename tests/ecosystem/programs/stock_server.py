"""A server of OpenEnv itself: `stock_server.py PORT MAX_SESSIONS`. Runs in OpenEnv's virtual environment."""

import random
import sys

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    """One required text."""

    message: str


class Heard(Observation):
    """What was said, repeated."""

    echoed: str = ""


class Echo(Environment):
    """Repeats what is said to it, three times; a reward is the length of what was said."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **others):
        self._state = State(episode_id=episode_id, step_count=0)
        return Heard(echoed=f"hello {random.Random(seed).randint(0, 10**9)}")

    def step(self, action, timeout_s=None, **others):
        self._state.step_count += 1
        return Heard(echoed=action.message, reward=float(len(action.message)), done=self._state.step_count >= 3)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_app(Echo, Say, Heard, env_name="echo", max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
