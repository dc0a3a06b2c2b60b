"""A server of OpenEnv itself: `openenv_server.py PORT MAX_SESSIONS STEPS`. Runs in OpenEnv's virtual environment."""

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
    """Repeats what is said to it, STEPS times or, if that is 0, for ever; a reward is the length of what was said."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    last_step = 0

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **others):
        self._state = State(episode_id=episode_id, step_count=0)
        return Heard(echoed=f"hello {random.Random(seed).randint(0, 10**9)}")

    def step(self, action, timeout_s=None, **others):
        self._state.step_count += 1
        done = self._state.step_count == self.last_step
        return Heard(echoed=action.message, reward=float(len(action.message)), done=done)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    port, max_sessions, Echo.last_step = map(int, sys.argv[1:])
    app = create_app(Echo, Say, Heard, env_name="echo", max_concurrent_envs=max_sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
